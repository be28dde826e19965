import { vi } from "vitest";

// The default limit of one second is too short on a busy machine.
const patient = 20_000;
const waitFor = vi.waitFor;
vi.waitFor = (check, options = patient) => waitFor(check, options);
