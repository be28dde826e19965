// @vitest-environment node
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import * as machine from "../src/dialogs/focus.ts";
import type { Focus, Kind } from "../src/dialogs/focus.ts";

interface Case {
  readonly case: string;
  readonly only?: string;
  readonly steps: readonly (readonly (string | number | boolean)[])[];
}

const CASES = JSON.parse(readFileSync(join(import.meta.dirname, "../../tests/client/answer_focus.json"), "utf8")) as readonly Case[];

function run(state: Focus, [name, ...values]: Case["steps"][number]): Focus {
  switch (name) {
    case "appear":
      return machine.appear(state, String(values[0]), values[1] as Kind, Number(values[2]));
    case "disappear":
      return machine.disappear(state);
    case "edit":
      return machine.edit(state, values[0] === true, Number(values[1]));
    case "press": {
      const [next, route] = machine.press(state, String(values[0]), Number(values[1]), values[3] === "repeat");
      expect(route.target).toBe(values[2]);
      expect(route.restore).toBe(String(values[3] ?? "").startsWith("restores ") ? String(values[3]).slice(9) : "");
      return next;
    }
    case "click": {
      const [next, route] = machine.click(state, Number(values[0]));
      expect(route.target).toBe(values[1]);
      return next;
    }
    case "tick":
      state = machine.tick(state, Number(values[0]));
  }
  expect(machine.isActive(state) ? "active" : "inactive").toBe(values[values.length - 1]);
  return state;
}

describe("the keyboard between composer and request", () => {
  // Terminals do not report repetition; the cases about that are for them only.
  for (const one of CASES.filter((known) => known.only === undefined)) {
    it(one.case, () => {
      one.steps.reduce(run, machine.START);
    });
  }

  it("never answers by random text, and answers where intended", () => {
    // A small generator with a fixed seed: the same texts every time.
    let seed = 17;
    const random = (below: number): number => (seed = (seed * 48271) % 2147483647) % below;
    for (let round = 0; round < 500; round++) {
      let state = machine.START;
      let at = 0;
      let typed = 0;
      const due = [random(6000), random(6000)].sort((a, b) => a - b);
      const pass = (until: number): void => {
        while (at < until) {
          at = Math.min(at + 20, until);
          if (due.length && (due[0] ?? 0) <= at) state = machine.appear(state, `r${due.shift()}`, "approval", at);
          state = machine.tick(machine.edit(state, typed === 0, at), at);
        }
      };
      for (let word = random(8); word > 0; word--) {
        for (let letters = 1 + random(6); letters > 0; letters--) {
          pass(at + random(random(4) ? 400 : 4000));
          const [next, route] = machine.press(state, random(9) ? "text" : String(1 + random(9)), at);
          expect(route.target).toBe("composer");
          [state, typed] = [next, typed + 1];
        }
        pass(at + random(machine.SETTLE_DELAY));
        const [next, route] = machine.press(state, "enter", at);
        expect(route.target).toBe("composer");
        [state, typed] = [next, 0];
      }
      pass(Math.max(at, 6000) + machine.SETTLE_DELAY + 20);
      expect(machine.press(machine.press(state, "right", at)[0], "enter", at)[1].target).toBe("request");
    }
  });
});
