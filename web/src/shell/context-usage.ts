// Context usage and cost of a session. Pure.

import type { AgentInfo, Config, Session } from "../wire/types.ts";

export interface Meter {
  readonly tokens: number;
  readonly window: number;
  /** 0 to 1; null if the context window of the model is unknown. */
  readonly share: number | null;
  readonly level: "calm" | "full" | "over";
  readonly cost: number;
  readonly isEstimate: boolean;
}

export function windowOf(config: Config, agent: AgentInfo | null): number {
  const large = config.models?.large;
  const models = config.providers?.[large?.provider ?? ""]?.models ?? [];
  const known = models.find((model) => model.id === large?.model)?.context_window;
  return known ?? (agent?.model.id === large?.model ? agent?.model.context_window : undefined) ?? 0;
}

export function meterOf(session: Session | null, window: number): Meter {
  const tokens = session ? session.prompt_tokens + session.completion_tokens : 0;
  const share = window > 0 ? tokens / window : null;
  const level = share === null || share < 0.7 ? "calm" : share < 0.9 ? "full" : "over";
  return { tokens, window, share, level, cost: session?.cost ?? 0, isEstimate: session?.estimated_usage ?? false };
}
