// The model picker: large and small model, reasoning effort, and missing keys.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { rank } from "../palette/fuzzy-match.ts";
import { Marked } from "../palette/highlighted.tsx";
import { useList } from "../palette/list-navigation.ts";
import { Icon } from "../shell/icons.tsx";
import { dialog } from "../shell/ui.ts";
import { chooseModel, config, loadProviders, providers, reportErrors, setProviderKey, toast } from "../store.ts";
import type { SelectedModel } from "../wire/types.ts";
import { Dialog } from "./dialog.tsx";
import { levelsOf, modelLines } from "./model-lines.ts";
import type { ModelLine } from "./model-lines.ts";

type Size = "large" | "small";
const size = signal<Size>("large");
const MAX_LINES = 300;

export function ModelsDialog(): JSX.Element {
  const [query, setQuery] = useState("");
  const [keyFor, setKeyFor] = useState<ModelLine | null>(null);
  const [effortFor, setEffortFor] = useState<ModelLine | null>(null);
  useEffect(() => void reportErrors(loadProviders()), []);
  const chosen = config.value.models?.[size.value];
  const now = chosen ? `${chosen.provider}/${chosen.model}` : "";
  const lines = useMemo(() => modelLines(providers.value), [providers.value]);
  const found = useMemo(() => {
    const all = rank(lines, query, (line) => line.title, (line) => `${line.value} ${line.detail}`);
    const marked = query ? all : all.sort((a, b) => Number(b.item.value === now) - Number(a.item.value === now));
    return marked.slice(0, MAX_LINES);
  }, [lines, query, now]);
  const choose = (line: ModelLine | undefined): void => {
    if (!line) return;
    if (line.lack || !line.model) setKeyFor(line);
    else if (levelsOf(line.model).length > 1) setEffortFor(line);
    else void use(line);
  };
  const list = useList(found.length, (at) => choose(found[at]?.item));
  if (keyFor) return <KeyDialog line={keyFor} onClose={() => setKeyFor(null)} />;
  if (effortFor) return <EffortDialog line={effortFor} now={chosen} onClose={() => setEffortFor(null)} />;
  return (
    <Dialog title="Choose a model" kind="picker" testid="models" focus="input" onClose={() => (dialog.value = null)} onKeyDown={list.onKeyDown}>
      <Sizes />
      <input
        class="field"
        type="text"
        autocomplete="off"
        role="combobox"
        aria-expanded="true"
        aria-controls="model-list"
        aria-activedescendant={`model-${list.at}`}
        aria-label="Filter models"
        placeholder="Filter models"
        value={query}
        onInput={(event) => {
          setQuery(event.currentTarget.value);
          list.move(0);
        }}
      />
      <ul id="model-list" role="listbox" aria-label="Models" class="picker-list" ref={list.ref}>
        {found.map(({ item, at }, index) => (
          <li
            key={item.value}
            id={`model-${index}`}
            role="option"
            aria-selected={index === list.at}
            class={item.lack ? "lacks" : ""}
            onClick={() => choose(item)}
            onPointerMove={() => list.move(index)}
          >
            <span class="picker-mark">{item.value === now && <Icon name="check" small />}</span>
            <span class="grow">
              <span class="picker-title">
                <Marked text={item.title} at={at} />
              </span>
              <small class="muted">{item.detail}</small>
            </span>
            {item.lack && (
              <span class="chip warning" title={item.lack}>
                <Icon name="key" small /> needs a key
              </span>
            )}
          </li>
        ))}
      </ul>
      {!found.length && <p class="empty">{lines.length ? "No model matches." : "Loading models …"}</p>}
    </Dialog>
  );
}

async function use(line: ModelLine, effort = ""): Promise<void> {
  if (!line.model) return;
  const choice: SelectedModel = { model: line.model.id, provider: line.provider.id, ...(effort ? { reasoning_effort: effort } : {}) };
  const isSaved = await reportErrors(chooseModel(size.value, choice).then(() => true));
  if (!isSaved) return;
  toast("success", `${line.title} is the ${size.value} model now.`);
  dialog.value = null;
}

function Sizes(): JSX.Element {
  const one = (name: Size, label: string): JSX.Element => (
    <button type="button" aria-pressed={size.value === name} onClick={() => (size.value = name)}>
      {label}
    </button>
  );
  return (
    <div class="segments" role="group" aria-label="Which model">
      {one("large", "Large: does the work")}
      {one("small", "Small: writes titles")}
    </div>
  );
}

/** The key is sent to the server and not kept: it exists only in the field, in no state of the page. */
function KeyDialog({ line, onClose }: { line: ModelLine; onClose(): void }): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  const name = line.provider.name || line.provider.id;
  const send = async (): Promise<void> => {
    const key = field.current?.value.trim();
    if (!key || !field.current) return;
    field.current.value = "";
    if (!(await reportErrors(setProviderKey(line.provider.id, key).then(() => true)))) return;
    toast("success", "The key is stored.");
    await reportErrors(loadProviders());
    onClose();
  };
  return (
    <Dialog title={`Key of ${name}`} kind="narrow" focus="input" onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <p class="muted">
          {line.lack.split("`").map((piece, at) => (at % 2 ? <code key={at}>{piece}</code> : piece))}
        </p>
        <input ref={field} class="field mono" type="password" autocomplete="off" spellcheck={false} placeholder="or paste it here" aria-label={`Key of ${name}`} />
        <p class="muted">It is stored by the server and never shown again.</p>
        <div class="form-end">
          <button type="button" class="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class="button primary">
            Store
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function EffortDialog({ line, now, onClose }: { line: ModelLine; now: SelectedModel | undefined; onClose(): void }): JSX.Element {
  const levels = levelsOf(line.model);
  const current = now?.model === line.model?.id ? (now?.reasoning_effort ?? "") : "";
  const list = useList(levels.length + 1, (at) => void use(line, at === 0 ? "" : levels[at - 1]));
  return (
    <Dialog title={`Reasoning effort of ${line.title}`} kind="narrow picker" focus="ul" onClose={onClose} onKeyDown={list.onKeyDown}>
      <ul role="listbox" aria-label="Effort" class="picker-list" tabIndex={0} aria-activedescendant={`effort-${list.at}`} ref={list.ref}>
        {["", ...levels].map((level, index) => (
          <li key={level} id={`effort-${index}`} role="option" aria-selected={index === list.at} onClick={() => void use(line, level)} onPointerMove={() => list.move(index)}>
            <span class="picker-mark">{level === current && <Icon name="check" small />}</span>
            <span class="grow">{level || "default"}</span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
