/** Error boundary: content that cannot be rendered is shown as plain text, and the rest of the page still works. */

import { type ComponentChildren, Component, type JSX } from "preact";

interface Props {
  readonly children: ComponentChildren;
  /** The content as plain text. */
  readonly raw: () => string;
}

export class Boundary extends Component<Props, { readonly isBroken: boolean }> {
  override state = { isBroken: false };

  static override getDerivedStateFromError(): { readonly isBroken: boolean } {
    return { isBroken: true };
  }

  override componentDidCatch(error: unknown): void {
    console.error("A part of the conversation could not be displayed.", error);
  }

  override render(): JSX.Element {
    if (!this.state.isBroken) return <>{this.props.children}</>;
    return (
      <details class="ending warning">
        <summary>This part cannot be displayed</summary>
        <pre class="ending-text">{this.props.raw().slice(0, 20_000)}</pre>
      </details>
    );
  }
}
