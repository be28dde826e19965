// @vitest-environment node
// When the page is drawn: never twice for one frame, not more often than one reads, and also when there are no frames.

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Frames } from "../src/store/flush.ts";

let waiting: ((now: number) => void)[] = [];
let drawings = 0;
let frames: Frames;

/** The browser draws. */
function drawn(now: number): void {
  const asked = waiting;
  waiting = [];
  for (const one of asked) one(now);
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("requestAnimationFrame", (call: (now: number) => void) => waiting.push(call));
  waiting = [];
  drawings = 0;
  frames = new Frames(() => (drawings += 1));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("what is asked many times before a frame is done once", () => {
  for (let at = 0; at < 100; at += 1) frames.ask();
  expect(drawings).toBe(0);
  drawn(100);
  expect(drawings).toBe(1);
  drawn(200);
  expect(drawings).toBe(1);
});

test("tokens without end are drawn every second frame, and the last of them too", () => {
  for (let frame = 0; frame < 60; frame += 1) {
    frames.ask();
    drawn(frame * 16.7);
  }
  expect(drawings).toBe(30);
  frames.ask();
  drawn(1_100);
  expect(drawings).toBe(31);
});

test("after a rest the first frame is taken", () => {
  frames.ask();
  drawn(0);
  frames.ask();
  drawn(500);
  expect(drawings).toBe(2);
});

test("a page that is not drawn still knows what happens", () => {
  frames.ask();
  vi.advanceTimersByTime(250);
  expect(drawings).toBe(1);
  drawn(300);
  expect(drawings).toBe(1);
});
