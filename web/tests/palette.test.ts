// @vitest-environment node
import { describe, expect, it } from "vitest";
import { isPressed, keyLabels } from "../src/palette/keys.ts";
import { targetIndex } from "../src/palette/list-navigation.ts";
import { fit, rank } from "../src/palette/fuzzy-match.ts";

const names = ["New session", "Sessions: open one", "Choose a model or set a key", "Timeline of the runs, with replay", "Theme: system, light, dark"];
const found = (query: string): string[] => rank(names, query, (name) => name).map((hit) => hit.item);

describe("rank", () => {
  it("returns everything without words", () => {
    expect(found(" ")).toEqual(names);
  });

  it("ranks a word start before other matches", () => {
    expect(found("sess").slice(0, 2)).toEqual(["Sessions: open one", "New session"]);
  });

  it("matches the starts of words", () => {
    expect(found("ns")[0]).toBe("New session");
    expect(found("totr")[0]).toBe("Timeline of the runs, with replay");
  });

  it("matches words in any order, also in the additional text", () => {
    expect(found("key model")).toEqual(["Choose a model or set a key"]);
    expect(rank(["a", "b"], "second", (name) => name, (name) => (name === "b" ? "the second" : ""))).toMatchObject([{ item: "b" }]);
  });

  it("omits items that lack a letter", () => {
    expect(found("zzz")).toEqual([]);
  });

  it("returns the matched positions", () => {
    expect(fit("New session", "sess")?.at).toEqual([4, 5, 6, 7]);
  });
});

const event = (key: string, more: Partial<KeyboardEvent> = {}): KeyboardEvent =>
  ({ key, code: /^[a-z]$/i.test(key) ? `Key${key.toUpperCase()}` : "", ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...more }) as KeyboardEvent;

describe("keys", () => {
  it("distinguishes ctrl and cmd by platform", () => {
    expect(isPressed("mod+k", event("k", { ctrlKey: true }), false)).toBe(true);
    expect(isPressed("mod+k", event("k", { metaKey: true }), true)).toBe(true);
    expect(isPressed("mod+k", event("k", { ctrlKey: true }), true)).toBe(false);
    expect(isPressed("mod+k", event("k", { ctrlKey: true, shiftKey: true }), false)).toBe(false);
  });

  it("matches by key code where alt changes the letter", () => {
    expect(isPressed("alt+n", event("˜", { code: "KeyN", altKey: true }), true)).toBe(true);
    expect(isPressed("alt+n", event("m", { code: "KeyM", altKey: true }), true)).toBe(false);
  });

  it("matches a symbol on any keyboard layout", () => {
    expect(isPressed("?", event("?", { shiftKey: true }), false)).toBe(true);
  });

  it("returns labels one by one", () => {
    expect(keyLabels("mod+k", true)).toEqual(["⌘", "K"]);
    expect(keyLabels("alt+n", false)).toEqual(["Alt", "N"]);
    expect(keyLabels("alt+arrowup", false)).toEqual(["Alt", "↑"]);
    expect(keyLabels("+", false)).toEqual(["+"]);
  });

  it("wraps around at the ends of a list", () => {
    expect(targetIndex("ArrowDown", 2, 3)).toBe(0);
    expect(targetIndex("ArrowUp", 0, 3)).toBe(2);
    expect(targetIndex("PageDown", 1, 3)).toBe(2);
    expect(targetIndex("x", 1, 3)).toBeNull();
    expect(targetIndex("ArrowDown", 0, 0)).toBeNull();
  });
});
