import { vi } from "vitest";

// One second, the limit of the library, passes on a busy machine while the page's own work waits for its turn.
const patient = 20_000;
const waitFor = vi.waitFor;
vi.waitFor = (check, options = patient) => waitFor(check, options);
