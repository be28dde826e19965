// The icons of the page: one stroke width, one size, no files.

import type { JSX } from "preact";

const PATHS = {
  anchor: "M12 8v12M8.5 11.5h7M4.5 14a7.5 6.5 0 0 0 15 0M4.5 14l-1 2M19.5 14l1 2M12 8a2.2 2.2 0 1 0 0-4.4A2.2 2.2 0 0 0 12 8z",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  close: "M6 6l12 12M18 6L6 18",
  check: "M5 12.5l4.5 4.5L19 7.5",
  pen: "M4 20l1-4L16 5l3 3L8 19l-4 1zM14 7l3 3",
  bin: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10 11v5M14 11v5",
  undo: "M8 5L4 9l4 4M4 9h10a6 6 0 0 1 0 12h-3",
  copy: "M9 9h10v11H9zM6 15H5V4h10v2",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M18.4 5.6L17 7M7 17l-1.4 1.4",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  auto: "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM12 4v16M12 8h5.5M12 12h7.5M12 16h5.5",
  command: "M9 9h6v6H9zM9 9H6.5A2.5 2.5 0 1 1 9 6.5zM15 9V6.5A2.5 2.5 0 1 1 17.5 9zM15 15h2.5a2.5 2.5 0 1 1-2.5 2.5zM9 15v2.5A2.5 2.5 0 1 1 6.5 15z",
  panel: "M4 5h16v14H4zM14.5 5v14",
  chat: "M4 6h16v11H10l-4 3.5V17H4z",
  bars: "M4 6h7M8 11h10M6 16h5M14 16h6",
  terminal: "M4 5h16v14H4zM7.5 9.5l3 2.5-3 2.5M12.5 15H16",
  file: "M6 3.5h8l4 4V20.5H6zM14 3.5v4h4",
  folder: "M3.5 6h6l2 2.5h9V19h-17z",
  globe: "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM3.5 12h17M12 3.5c5 5 5 12 0 17M12 3.5c-5 5-5 12 0 17",
  download: "M12 4v11M7.5 11l4.5 4.5 4.5-4.5M5 20h14",
  list: "M9 6.5h11M9 12h11M9 17.5h11M4.5 6.5h.01M4.5 12h.01M4.5 17.5h.01",
  todo: "M4 6.5l1.5 1.5L8 5M4 12.5L5.5 14 8 11M11 7h9M11 13h9M11 18.5h9M4.8 18.5h2",
  question: "M9 9a3 3 0 1 1 4.2 2.8c-.8.4-1.2 1-1.2 2M12 17.5h.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  people: "M9 11.5a3.2 3.2 0 1 0 0-6.4 3.2 3.2 0 0 0 0 6.4zM3.5 19c.4-3.4 2.6-5 5.5-5s5.1 1.6 5.5 5M15.5 5.4a3.2 3.2 0 0 1 0 5.9M17 14.4c2 .6 3.2 2.1 3.5 4.6",
  tool: "M14.5 6a4 4 0 0 1 5 5l-8.6 8.6a2.1 2.1 0 0 1-3-3L16.5 8M14.5 6l2.5 2.5M14.5 6a4 4 0 0 0-4.9 5.1L4 16.7",
  stop: "M7 7h10v10H7z",
  play: "M8 5.5v13l10-6.5z",
  pause: "M8.5 6v12M15.5 6v12",
  back: "M15 6l-6 6 6 6",
  next: "M9 6l6 6-6 6",
  down: "M6 9.5l6 6 6-6",
  minus: "M5 12h14",
  fit: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  spark: "M12 3.5l1.8 5.2 5.2 1.8-5.2 1.8L12 17.5l-1.8-5.2L5 10.5l5.2-1.8zM18.5 16v4M16.5 18h4",
  key: "M14.5 9.5a4 4 0 1 0-3.6 5.9L13 13.3h2v-2h2l2.5-2.5V6h-2.8zM8 14.5h.01",
  warning: "M12 4.5L21 19.5H3zM12 10v4.5M12 17h.01",
  split: "M4 5h16v14H4zM12 5v14",
  unified: "M4 5h16v14H4zM4 12h16",
  wide: "M4 9V4h5M20 15v5h-5M4 4l6 6M20 20l-6-6",
  clock: "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 7.5V12l3 2",
  eye: "M3 12c2.5-4.3 5.4-6.5 9-6.5s6.5 2.2 9 6.5c-2.5 4.3-5.4 6.5-9 6.5S5.5 16.3 3 12zM12 14.7a2.7 2.7 0 1 0 0-5.4 2.7 2.7 0 0 0 0 5.4z",
} as const;

export type IconName = keyof typeof PATHS;

/** Never the only indication: a text next to it, or the label of its button, has the same meaning. */
export function Icon({ name, small }: { name: IconName; small?: boolean }): JSX.Element {
  return (
    <svg class={small ? "icon small" : "icon"} viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
