// Background jobs: their output, and a button to end them.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Bounded } from "../cards/output.tsx";
import { plain } from "../cards/tool-data.ts";
import { elapsed } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { jobOutput, jobs, killJob, loadJobs, reportErrors } from "../store.ts";
import type { Job, JobOutput } from "../wire/types.ts";
import { useNow } from "./use-now.ts";

const POLL_INTERVAL = 3_000;

export function Jobs(): JSX.Element {
  useEffect(() => {
    // There are no events for jobs: they are polled while the panel is open.
    void reportErrors(loadJobs());
    const timer = setInterval(() => void loadJobs().catch(() => undefined), POLL_INTERVAL);
    return () => clearInterval(timer);
  }, []);
  const now = useNow(jobs.value.some(isRunning));
  if (!jobs.value.length) return <p class="empty">There are no background jobs.</p>;
  return (
    <ul class="lines">
      {jobs.value.map((job) => (
        <JobLine key={job.id} job={job} now={now} />
      ))}
    </ul>
  );
}

const isRunning = (job: Job): boolean => (job.state ?? "running") === "running";

function JobLine({ job, now }: { job: Job; now: number }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const running = isRunning(job);
  const end = job.exit_code === undefined || job.exit_code === null ? "" : `exit code ${job.exit_code}`;
  const facts = [job.id, job.state ?? "running", end, elapsed((job.ended_at || now) - job.started_at)];
  return (
    <li class="line tall">
      <span class={`line-mark ${running ? "" : job.exit_code ? "failed" : "completed"}`}>
        {running ? <span class="dot busy" /> : <Icon name={job.exit_code ? "warning" : "check"} small />}
      </span>
      <button type="button" class="line-main" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class="clip mono">{job.command.replace(/\s+/g, " ")}</span>
        <small class="faint">{facts.filter(Boolean).join(" · ")}</small>
      </button>
      {running && (
        <button type="button" class="button small danger" onClick={() => void reportErrors(killJob(job.id))}>
          <Icon name="stop" small /> End it
        </button>
      )}
      {isOpen && <Output job={job} isRunning={running} />}
    </li>
  );
}

function Output({ job, isRunning: running }: { job: Job; isRunning: boolean }): JSX.Element {
  const [output, setOutput] = useState<JobOutput | null>(null);
  useEffect(() => {
    const read = (): void => void jobOutput(job.id).then(setOutput, () => undefined);
    read();
    if (!running) return undefined;
    const timer = setInterval(read, POLL_INTERVAL / 2);
    return () => clearInterval(timer);
  }, [job.id, running]);
  const text = output ? plain([output.stdout, output.stderr].filter(Boolean).join("\n")) : "";
  return <div class="line-more">{text.trim() ? <Bounded text={text} most={30} fromEnd live /> : <p class="card-note">There is no output yet.</p>}</div>;
}
