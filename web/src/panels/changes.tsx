// Files the session changed, with their changes; the last change of one, or all of a run, can be taken back.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { inside } from "../cards/facts.ts";
import { counted as countLines, diffOf } from "../diff/lines.ts";
import { Diff, columns, turnColumns } from "../diff/view.tsx";
import { counted } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { ask } from "../shell/ui.ts";
import { filesChanged, history, runs, say, sessionId, toast, undo, workspace } from "../store.ts";
import type { FileVersion, UndoAsk } from "../wire/types.ts";
import { changedFiles, changingRuns, planned } from "./changed.ts";
import type { ChangedFile } from "./changed.ts";

const versions = signal<readonly FileVersion[] | null>(null);

export function Changes(): JSX.Element {
  const session = sessionId.value;
  const count = filesChanged.value;
  useEffect(() => {
    void say(history()).then((found) => (versions.value = found ?? []));
  }, [session, count]);
  const files = useMemo(() => changedFiles((versions.value ?? []).filter((one) => one.session_id === session)), [versions.value, session]);
  if (!files.length) return <p class="empty">{versions.value === null ? "Looking …" : "This session has changed nothing."}</p>;
  return (
    <>
      <div class="panel-tools">
        <span class="muted grow">{counted(files.length, "file")} changed</span>
        <button type="button" class="square small" aria-pressed={columns.value === "split"} aria-label="Two columns" title="Two columns (Alt D)" onClick={turnColumns}>
          <Icon name="split" small />
        </button>
      </div>
      <RunsToUndo files={files} />
      <ul class="changes">
        {files.map((file) => (
          <File key={file.path} file={file} />
        ))}
      </ul>
    </>
  );
}

function RunsToUndo({ files }: { files: readonly ChangedFile[] }): JSX.Element | null {
  const last = changingRuns(files)[0];
  if (!last) return null;
  const prompt = runs.value.find((run) => run.run_id === last.runId)?.prompt ?? "";
  return (
    <div class="undo-run">
      <span class="grow">
        <small class="muted">The last run that changed something: {counted(last.files, "file")}</small>
        {prompt && <span class="clip">{prompt}</span>}
      </span>
      <button type="button" class="button small" onClick={() => void takeBack({ run_id: last.runId }, "all that this run changed")}>
        <Icon name="undo" small /> Undo the run
      </button>
    </div>
  );
}

function File({ file }: { file: ChangedFile }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const lines = useMemo(() => diffOf(file.first.content, file.last.content), [file]);
  const { added, removed } = countLines(lines);
  const name = inside(file.path, workspace.value?.path ?? "");
  const word = file.last.is_missing ? "removed" : file.first.is_missing ? "new" : "";
  return (
    <li class="change">
      <div class="change-head">
        <button type="button" class="change-name" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name="down" small />
          <span class="clip mono" title={file.path}>
            {name}
          </span>
          {word && <span class={`chip ${word === "new" ? "success" : "error"}`}>{word}</span>}
          <span class="plus">+{added}</span>
          <span class="minus">−{removed}</span>
        </button>
        <button type="button" class="square small" aria-label={`Undo the last change of ${name}`} title="Undo the last change" onClick={() => void takeBack({ path: file.path }, `the last change of ${name}`)}>
          <Icon name="undo" small />
        </button>
      </div>
      {isOpen && <Diff lines={lines} path={file.path} most={200} label={`What changed in ${name}`} />}
    </li>
  );
}

/** What a whole run changed is taken back only after somebody has seen the list; a file that has changed since as well. */
async function takeBack(what: UndoAsk, words: string): Promise<void> {
  const wanted: UndoAsk = { ...what, session_id: sessionId.value ?? "" };
  const root = workspace.value?.path ?? "";
  const plan = await say(undo({ ...wanted, dry_run: true }));
  if (!plan) return;
  const isRefused = plan.files.some((file) => file.outcome === "refused");
  const sure = isRefused ? "Undo it all the same" : "Undo";
  if ((what.run_id || isRefused) && !(await ask(`Take back ${words}?`, planned(plan.files, root).join("\n"), sure))) return;
  const report = await say(undo({ ...wanted, force: isRefused }));
  const done = report?.files.map((file) => `${inside(file.path, root)}: ${file.outcome}`).join("\n");
  if (done) toast("success", done);
  versions.value = (await say(history())) ?? versions.value;
}
