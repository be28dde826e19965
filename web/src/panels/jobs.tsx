// Commands in the background: what they say, and an end to them.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Bounded } from "../cards/code.tsx";
import { plain } from "../cards/facts.ts";
import { elapsed } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { jobOutput, jobs, killJob, loadJobs, say } from "../store.ts";
import type { Job, JobOutput } from "../wire/types.ts";
import { useNow } from "./now.ts";

const LOOK = 3_000;

export function Jobs(): JSX.Element {
  useEffect(() => {
    // Nobody tells of jobs: while somebody looks, they are asked for.
    void say(loadJobs());
    const timer = setInterval(() => void loadJobs().catch(() => undefined), LOOK);
    return () => clearInterval(timer);
  }, []);
  const now = useNow(jobs.value.some(isRunning));
  if (!jobs.value.length) return <p class="empty">No job runs in the background.</p>;
  return (
    <ul class="lines">
      {jobs.value.map((job) => (
        <One key={job.id} job={job} now={now} />
      ))}
    </ul>
  );
}

const isRunning = (job: Job): boolean => (job.state ?? "running") === "running";

function One({ job, now }: { job: Job; now: number }): JSX.Element {
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
        <button type="button" class="button small danger" onClick={() => void say(killJob(job.id))}>
          <Icon name="stop" small /> End it
        </button>
      )}
      {isOpen && <Said job={job} isRunning={running} />}
    </li>
  );
}

function Said({ job, isRunning: running }: { job: Job; isRunning: boolean }): JSX.Element {
  const [said, setSaid] = useState<JobOutput | null>(null);
  useEffect(() => {
    const read = (): void => void jobOutput(job.id).then(setSaid, () => undefined);
    read();
    if (!running) return undefined;
    const timer = setInterval(read, LOOK / 2);
    return () => clearInterval(timer);
  }, [job.id, running]);
  const text = said ? plain([said.stdout, said.stderr].filter(Boolean).join("\n")) : "";
  return <div class="line-more">{text.trim() ? <Bounded text={text} most={30} fromEnd live /> : <p class="card-note">It has said nothing yet.</p>}</div>;
}
