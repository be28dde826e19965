// What one sees before the first prompt: where one is, who answers, what to begin with.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Keys } from "../palette/keycap.tsx";
import { chooseSession, config, guide, initProject, loadProviders, loadTrust, prompt, providers, say, sessions, setTrust, workspace } from "../store.ts";
import type { TrustBody } from "../wire/types.ts";
import { Icon } from "./icons.tsx";
import type { IconName } from "./icons.tsx";
import { ask, dialog, isTouch } from "./ui.ts";

const trust = signal<TrustBody | null>(null);

export function Welcome(): JSX.Element {
  const large = config.value.models?.large;
  const isScripted = large?.provider === "demo";
  useEffect(() => {
    void say(loadProviders());
    void say(loadTrust()).then((found) => (trust.value = found ?? null));
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
          <Fact name="model" value={large ? `${large.provider}/${large.model}${isScripted ? "  (scripted: nobody is thinking)" : ""}` : "none yet"} />
          {found.length > 0 && <Fact name="found" value={found.join(", ")} />}
        </dl>
        <Doors isScripted={isScripted} />
        <TrustNote />
        <p class="muted welcome-words">
          Write what you want done and press {isTouch ? "Send" : <Keys keys="enter" />}. You may close this page while it works: it goes on, and whoever comes next sees all of it.
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

function Doors({ isScripted }: { isScripted: boolean }): JSX.Element {
  const latest = sessions.value.find((one) => !one.parent_session_id);
  return (
    <ul class="doors">
      {isScripted && <Door icon="play" title="Take the tour" about="no key, no network: everything but the model is real" run={() => void say(prompt("tour"))} />}
      {latest && <Door icon="chat" title="Go on" about={`with “${latest.title}”`} run={() => void say(chooseSession(latest.id))} />}
      <Door icon="spark" title="Choose a model" about="or set a key" run={() => (dialog.value = "models")} />
      {!isScripted && <Door icon="pen" title={`Write ${guide.value}`} about="the model describes the project for whoever comes next" run={() => void say(initProject())} />}
      <Door icon="question" title="Keys" about="on one page" run={() => (dialog.value = "help")} />
    </ul>
  );
}

function Door({ icon, title, about, run }: { icon: IconName; title: string; about: string; run(): void }): JSX.Element {
  return (
    <li>
      <button type="button" class="door" onClick={run}>
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

/** A project may bring settings that are not used before somebody has looked at them. */
function TrustNote(): JSX.Element | null {
  const found = trust.value;
  if (!found || found.trusted || !found.withheld?.length) return null;
  const give = async (): Promise<void> => {
    const list = (found.withheld ?? []).map((key) => `${key.key} (${key.file}:${key.line})`).join("\n");
    if (!(await ask("Trust this project's settings?", `They are not used until you do:\n${list}`, "Trust them", false))) return;
    trust.value = (await say(setTrust(true, found.digest ?? ""))) ?? trust.value;
  };
  return (
    <p class="note warning">
      <Icon name="warning" small />
      <span class="grow">This project brings settings that are not used until you trust it.</span>
      <button type="button" class="button small" onClick={() => void give()}>
        Look at them
      </button>
    </p>
  );
}
