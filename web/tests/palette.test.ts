// @vitest-environment node
import { describe, expect, it } from "vitest";
import { isPressed, printed } from "../src/palette/keys.ts";
import { moved } from "../src/palette/list.ts";
import { fit, ranked } from "../src/palette/rank.ts";

const names = ["New session", "Sessions: open one", "Choose a model, set a key", "Timeline of the runs; replay one", "Theme: as the system, light, dark"];
const found = (words: string): string[] => ranked(names, words, (name) => name).map((hit) => hit.item);

describe("ranked", () => {
  it("leaves everything as it is without words", () => {
    expect(found(" ")).toEqual(names);
  });

  it("puts what begins with the letters before what merely has them", () => {
    expect(found("sess").slice(0, 2)).toEqual(["Sessions: open one", "New session"]);
  });

  it("finds the beginnings of words", () => {
    expect(found("ns")[0]).toBe("New session");
    expect(found("totr")[0]).toBe("Timeline of the runs; replay one");
  });

  it("finds words in any order, also in what stands beside the name", () => {
    expect(found("key model")).toEqual(["Choose a model, set a key"]);
    expect(ranked(["a", "b"], "second", (name) => name, (name) => (name === "b" ? "the second" : ""))).toMatchObject([{ item: "b" }]);
  });

  it("leaves out what lacks a letter", () => {
    expect(found("zzz")).toEqual([]);
  });

  it("says which letters it found", () => {
    expect(fit("New session", "sess")?.at).toEqual([4, 5, 6, 7]);
  });
});

const event = (key: string, more: Partial<KeyboardEvent> = {}): KeyboardEvent =>
  ({ key, code: /^[a-z]$/i.test(key) ? `Key${key.toUpperCase()}` : "", ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...more }) as KeyboardEvent;

describe("keys", () => {
  it("knows ctrl from cmd by the machine", () => {
    expect(isPressed("mod+k", event("k", { ctrlKey: true }), false)).toBe(true);
    expect(isPressed("mod+k", event("k", { metaKey: true }), true)).toBe(true);
    expect(isPressed("mod+k", event("k", { ctrlKey: true }), true)).toBe(false);
    expect(isPressed("mod+k", event("k", { ctrlKey: true, shiftKey: true }), false)).toBe(false);
  });

  it("takes the place of a letter where alt makes another one of it", () => {
    expect(isPressed("alt+n", event("˜", { code: "KeyN", altKey: true }), true)).toBe(true);
    expect(isPressed("alt+n", event("m", { code: "KeyM", altKey: true }), true)).toBe(false);
  });

  it("takes a sign wherever it is on the keyboard", () => {
    expect(isPressed("?", event("?", { shiftKey: true }), false)).toBe(true);
  });

  it("prints them one by one", () => {
    expect(printed("mod+k", true)).toEqual(["⌘", "K"]);
    expect(printed("alt+n", false)).toEqual(["Alt", "N"]);
    expect(printed("alt+arrowup", false)).toEqual(["Alt", "↑"]);
    expect(printed("+", false)).toEqual(["+"]);
  });

  it("goes round at the ends of a list", () => {
    expect(moved("ArrowDown", 2, 3)).toBe(0);
    expect(moved("ArrowUp", 0, 3)).toBe(2);
    expect(moved("PageDown", 1, 3)).toBe(2);
    expect(moved("x", 1, 3)).toBeNull();
    expect(moved("ArrowDown", 0, 0)).toBeNull();
  });
});
