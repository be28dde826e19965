export { ToolCard } from "./card.tsx";
export type { ToolCardProps } from "./card.tsx";
export { foldAll, wish } from "./folding.ts";
