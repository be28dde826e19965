import { defineConfig } from "vitest/config";

// The bundle is committed and goes into the wheel: the same source always gives the same files, and nothing is
// inlined, because the page allows neither inline scripts nor inline styles.
export default defineConfig({
  base: "/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/holdfast/web",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 400,
  },
  server: { host: "127.0.0.1" },
  test: {
    environment: "jsdom",
    include: ["tests/**/*.test.{ts,tsx}"],
    setupFiles: ["tests/timeouts.ts"],
    // Generous, so that a busy machine does not fail the tests.
    testTimeout: 30_000,
  },
});
