// Models as lines of a list. Pure.

import { thousands } from "../shell/format.ts";
import type { Model, Provider } from "../wire/types.ts";

export interface ModelLine {
  readonly value: string;
  readonly provider: Provider;
  /** Null: the models of the provider are unknown, because a key is missing. */
  readonly model: Model | null;
  readonly title: string;
  readonly detail: string;
  readonly lack: string;
}

/** Returns usable models first, then providers without a key. */
export function modelLines(providers: readonly Provider[]): ModelLine[] {
  const lines = providers.flatMap(linesOf);
  return [...lines.filter((line) => !line.lack), ...lines.filter((line) => line.lack)];
}

function linesOf(provider: Provider): ModelLine[] {
  const name = provider.name || provider.id;
  const lack = provider.lack ?? "";
  const models = provider.models ?? [];
  if (!models.length) return lack ? [{ value: `${provider.id}/`, provider, model: null, title: name, detail: "", lack }] : [];
  return models.map((model) => ({
    value: `${provider.id}/${model.id}`,
    provider,
    model,
    title: model.name || model.id,
    detail: factsOf(name, model),
    lack,
  }));
}

function factsOf(name: string, model: Model): string {
  const window = model.context_window ? `${thousands(model.context_window)} tokens` : "";
  const into = model.cost_per_1m_in;
  const out = model.cost_per_1m_out;
  const price = into || out ? `$${short(into ?? 0)} in, $${short(out ?? 0)} out` : "";
  return [name, window, price, model.can_reason ? "reasons" : ""].filter(Boolean).join(" · ");
}

const short = (value: number): string => String(Number(value.toPrecision(3)));

/** Returns the reasoning efforts that a model offers. */
export function levelsOf(model: Model | null): readonly string[] {
  const levels = (model as (Model & { reasoning_levels?: readonly string[] }) | null)?.reasoning_levels;
  return levels ?? [];
}
