/** What cannot be drawn is shown as it came, and the rest of the page goes on. */

import { type ComponentChildren, Component, type JSX } from "preact";

interface Props {
  readonly children: ComponentChildren;
  /** What would have been drawn, for people. */
  readonly raw: () => string;
}

export class Boundary extends Component<Props, { readonly isBroken: boolean }> {
  override state = { isBroken: false };

  static override getDerivedStateFromError(): { readonly isBroken: boolean } {
    return { isBroken: true };
  }

  override componentDidCatch(error: unknown): void {
    console.error("A part of the conversation could not be drawn.", error);
  }

  override render(): JSX.Element {
    if (!this.state.isBroken) return <>{this.props.children}</>;
    return (
      <details class="ending warning">
        <summary>This cannot be shown properly</summary>
        <pre class="words">{this.props.raw().slice(0, 20_000)}</pre>
      </details>
    );
  }
}
