/** Parses an event stream that is split anywhere. Counterpart of the reader in protocol/sse.py. Pure and linear. */

export interface SseEvent {
  readonly data: string;
  readonly number: number | null;
}

export class SseReader {
  private rest: string[] = [];
  private data: string[] = [];
  private number: number | null = null;

  /** Returns the complete events; keeps the rest. */
  feed(chunk: string): SseEvent[] {
    const last = chunk.lastIndexOf("\n");
    if (last < 0) {
      // A long line in many pieces is joined once, when it is complete.
      if (chunk !== "") this.rest.push(chunk);
      return [];
    }
    const whole = this.rest.join("") + chunk.slice(0, last);
    this.rest = last + 1 < chunk.length ? [chunk.slice(last + 1)] : [];
    const events: SseEvent[] = [];
    for (const line of whole.split("\n")) {
      const event = this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event !== null) events.push(event);
    }
    return events;
  }

  private line(line: string): SseEvent | null {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") this.data.push(value);
    else if (name === "id" && /^[0-9]+$/.test(value)) this.number = Number(value);
    return null;
  }

  private dispatch(): SseEvent | null {
    const { data, number } = this;
    this.data = [];
    this.number = null;
    return data.length > 0 ? { data: data.join("\n"), number } : null;
  }
}
