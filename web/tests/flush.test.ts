// @vitest-environment node
// Renderings: at most one per frame, limited in rate, and also without frames.

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Frames } from "../src/store/flush.ts";

let waiting: ((now: number) => void)[] = [];
let drawings = 0;
let frames: Frames;

/** Simulates a frame of the browser. */
function drawn(now: number): void {
  const callbacks = waiting;
  waiting = [];
  for (const one of callbacks) one(now);
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

test("many requests before a frame cause one rendering", () => {
  for (let at = 0; at < 100; at += 1) frames.schedule();
  expect(drawings).toBe(0);
  drawn(100);
  expect(drawings).toBe(1);
  drawn(200);
  expect(drawings).toBe(1);
});

test("continuous tokens are rendered every second frame, including the last one", () => {
  for (let frame = 0; frame < 60; frame += 1) {
    frames.schedule();
    drawn(frame * 16.7);
  }
  expect(drawings).toBe(30);
  frames.schedule();
  drawn(1_100);
  expect(drawings).toBe(31);
});

test("after a pause the first frame is used", () => {
  frames.schedule();
  drawn(0);
  frames.schedule();
  drawn(500);
  expect(drawings).toBe(2);
});

test("a page in the background is still updated", () => {
  frames.schedule();
  vi.advanceTimersByTime(250);
  expect(drawings).toBe(1);
  drawn(300);
  expect(drawings).toBe(1);
});
