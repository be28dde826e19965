export { ToolCard } from "./card.tsx";
export type { ToolCardProps } from "./card.tsx";
export { foldAll, foldRequest } from "./folding.ts";
