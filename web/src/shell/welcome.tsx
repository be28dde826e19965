// The screen before the first prompt: workspace, model, and suggestions.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Keys } from "../palette/keycap.tsx";
import { chooseSession, config, guide, initProject, loadProviders, loadTrust, prompt, providers, reportErrors, sessions, setTrust, workspace } from "../store.ts";
import type { TrustBody } from "../wire/types.ts";
import { Icon } from "./icons.tsx";
import type { IconName } from "./icons.tsx";
import { confirmAction, dialog, isTouch } from "./ui.ts";

const trust = signal<TrustBody | null>(null);

export function Welcome(): JSX.Element {
  const large = config.value.models?.large;
  const isScripted = large?.provider === "demo";
  useEffect(() => {
    void reportErrors(loadProviders());
    void reportErrors(loadTrust()).then((found) => (trust.value = found ?? null));
  }, []);
  const found = providers.value.filter((one) => !one.lack && one.id !== "demo" && one.models?.length).map((one) => one.name || one.id);
  return (
    <div class="welcome">
      <div class="welcome-box">
        <span class="welcome-mark">
          <Icon name="anchor" />
        </span>
        <h2>Holdfast</h2>
        <p class="muted">A coding agent that holds on when you let go.</p>
        <dl class="welcome-facts">
          <Fact name="directory" value={workspace.value?.path ?? ""} />
          <Fact name="model" value={large ? `${large.provider}/${large.model}${isScripted ? "  (scripted, no real model)" : ""}` : "none yet"} />
          {found.length > 0 && <Fact name="found" value={found.join(", ")} />}
        </dl>
        <Suggestions isScripted={isScripted} />
        <TrustNote />
        <p class="muted welcome-text">
          Write a prompt and press {isTouch ? "Send" : <Keys keys="enter" />}. You can close this page during a run: the run continues, and every client shows its result.
        </p>
      </div>
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd class="clip" title={value}>
        {value}
      </dd>
    </div>
  );
}

function Suggestions({ isScripted }: { isScripted: boolean }): JSX.Element {
  const latest = sessions.value.find((one) => !one.parent_session_id);
  return (
    <ul class="suggestions">
      {isScripted && <Suggestion icon="play" title="Take the tour" about="no key, no network; only the model is scripted" run={() => void reportErrors(prompt("tour"))} />}
      {latest && <Suggestion icon="chat" title="Continue" about={`with “${latest.title}”`} run={() => void reportErrors(chooseSession(latest.id))} />}
      <Suggestion icon="spark" title="Choose a model" about="or set a key" run={() => (dialog.value = "models")} />
      {!isScripted && <Suggestion icon="pen" title={`Write ${guide.value}`} about="the model describes the project for later sessions" run={() => void reportErrors(initProject())} />}
      <Suggestion icon="question" title="Keys" about="on one page" run={() => (dialog.value = "help")} />
    </ul>
  );
}

function Suggestion({ icon, title, about, run }: { icon: IconName; title: string; about: string; run(): void }): JSX.Element {
  return (
    <li>
      <button type="button" class="suggestion" onClick={run}>
        <Icon name={icon} />
        <span class="grow">
          <b>{title}</b>
          <small class="muted">{about}</small>
        </span>
        <Icon name="next" small />
      </button>
    </li>
  );
}

/** Settings of a project that have no effect until the user trusts it. */
function TrustNote(): JSX.Element | null {
  const found = trust.value;
  if (!found || found.trusted || !found.withheld?.length) return null;
  const submitKey = async (): Promise<void> => {
    const list = (found.withheld ?? []).map((key) => `${key.key} (${key.file}:${key.line})`).join("\n");
    if (!(await confirmAction("Trust this project's settings?", `They have no effect until then:\n${list}`, "Trust them", false))) return;
    trust.value = (await reportErrors(setTrust(true, found.digest ?? ""))) ?? trust.value;
  };
  return (
    <p class="note warning">
      <Icon name="warning" small />
      <span class="grow">This project contains settings that have no effect until you trust it.</span>
      <button type="button" class="button small" onClick={() => void submitKey()}>
        Show them
      </button>
    </p>
  );
}
