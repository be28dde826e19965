// The model asks. All questions of a batch stand below each other and are answered together.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { answerQuestions, dismissQuestions, say } from "../store.ts";
import { Markdown } from "../text/markdown.tsx";
import type { Question, QuestionRequest } from "../wire/types.ts";
import { answerOf, isAnswered, NOTHING, toggled } from "./answers.ts";
import type { Given } from "./answers.ts";
import { Dialog } from "./dialog.tsx";

interface Props {
  readonly batch: QuestionRequest;
  onAside(): void;
}

export function QuestionDialog({ batch, onAside }: Props): JSX.Element {
  const [given, setGiven] = useState<Readonly<Record<string, Given>>>({});
  const [isSent, setSent] = useState(false);
  const of = (question: Question): Given => given[question.id] ?? NOTHING;
  const put = (question: Question, value: Given): void => setGiven({ ...given, [question.id]: value });
  const open = batch.questions.filter((question) => !isAnswered(question, of(question))).length;
  const tell = async (told: Promise<unknown>): Promise<void> => {
    setSent(true);
    if ((await say(told.then(() => true))) === undefined) setSent(false);
  };
  const send = (): void => void tell(answerQuestions(batch, batch.questions.map((question) => answerOf(question, of(question)))));
  const sure = [batch.confirm_title, batch.confirm_description].filter(Boolean).join(" ");
  return (
    <Dialog
      title="The model would like to know"
      kind="ask"
      testid="question"
      closeLabel="Decide later"
      focus="input, textarea"
      onClose={onAside}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
      }}
      foot={
        <div class="ask-answers two">
          <span class="grow muted">{open ? `${open} of ${batch.questions.length} not answered: they are skipped` : sure}</span>
          <button type="button" class="button danger" disabled={isSent} onClick={() => void tell(dismissQuestions(batch))}>
            Do not answer
          </button>
          <button type="button" class="button primary" data-action="send" disabled={isSent} onClick={send}>
            Send <kbd aria-hidden="true">ctrl ↵</kbd>
          </button>
        </div>
      }
    >
      <ol class="questions">
        {batch.questions.map((question, at) => (
          <One key={question.id} question={question} number={batch.questions.length > 1 ? at + 1 : 0} given={of(question)} put={(value) => put(question, value)} />
        ))}
      </ol>
    </Dialog>
  );
}

interface OneProps {
  readonly question: Question;
  readonly number: number;
  readonly given: Given;
  put(value: Given): void;
}

function One({ question, number, given, put }: OneProps): JSX.Element {
  const isFree = question.type === "free_text";
  const label = isFree ? "Your answer" : "Something else (optional)";
  return (
    <li>
      <fieldset class="one-question">
        <legend>
          {number > 0 && <span class="faint">{number}. </span>}
          {question.question}
        </legend>
        {question.description && (
          <div class="question-text muted">
            <Markdown text={question.description} />
          </div>
        )}
        <Choices question={question} given={given} put={put} />
        {isFree ? (
          <textarea class="field" rows={3} aria-label={label} placeholder={label} value={given.text} onInput={(event) => put({ ...given, text: event.currentTarget.value })} />
        ) : (
          <input class="field" aria-label={label} placeholder={label} value={given.text} onInput={(event) => put({ ...given, text: event.currentTarget.value })} />
        )}
      </fieldset>
    </li>
  );
}

function Choices({ question, given, put }: Omit<OneProps, "number">): JSX.Element | null {
  if (question.type === "free_text") return null;
  if (question.type === "yes_no") {
    return (
      <div class="choices row">
        {([true, false] as const).map((yes) => (
          <label key={String(yes)} class="choice">
            <input type="radio" name={question.id} checked={given.yes === yes} onChange={() => put({ ...given, yes })} />
            <span>{yes ? "Yes" : "No"}</span>
          </label>
        ))}
      </div>
    );
  }
  const isMany = question.type === "multi_choice";
  return (
    <div class="choices">
      {(question.choices ?? []).map((choice) => (
        <label key={choice.id} class="choice">
          <input
            type={isMany ? "checkbox" : "radio"}
            name={question.id}
            checked={given.chosen.includes(choice.id)}
            onChange={() => put(toggled(question, given, choice.id))}
          />
          <span>
            {choice.label}
            {choice.description && <small class="muted">{choice.description}</small>}
          </span>
        </label>
      ))}
    </div>
  );
}
