// Questions of the model. All questions of a batch are shown together and answered together.

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { answerQuestions, dismissQuestions, reportErrors } from "../store.ts";
import { Markdown } from "../text/markdown.tsx";
import type { Question, QuestionRequest } from "../wire/types.ts";
import { answerOf, isAnswered, NOTHING, toggle } from "./answers.ts";
import type { Given } from "./answers.ts";
import { leave, mayClick, panelState, useRequest } from "./keyboard.ts";
import { RequestPanel } from "./request-panel.tsx";

interface Props {
  readonly batch: QuestionRequest;
  onAside(): void;
}

const KEYS = {
  active: ["↑ ↓ choose", "1-9 marks", "Enter selects it", "Tab to write an answer", "letters go to the composer"],
  focused: ["Tab to the next field", "Ctrl Enter sends", "Esc back to writing"],
};
const choicesOf = (question: Question): readonly string[] => (question.type === "yes_no" ? ["yes", "no"] : question.type === "free_text" ? [] : (question.choices ?? []).map((one) => one.id));

/** Toggles a choice. */
function marked(question: Question, given: Given, id: string): Given {
  return question.type === "yes_no" ? { ...given, yes: id === "yes" } : toggle(question, given, id);
}

interface Cursor {
  /** Index of the question and of its choice. */
  readonly at: number;
  readonly choice: number;
}

export function QuestionPanel({ batch, onAside }: Props): JSX.Element {
  const [given, setGiven] = useState<Readonly<Record<string, Given>>>({});
  const [cursor, setCursor] = useState<Cursor>({ at: 0, choice: 0 });
  const [isSent, setSent] = useState(false);
  const beforeDigits = useRef<{ readonly given: typeof given; readonly cursor: Cursor } | null>(null);
  const element = useRef<HTMLElement>(null);
  const isActive = panelState.value === "active" || panelState.value === "focused";
  const of = (question: Question, all = given): Given => all[question.id] ?? NOTHING;
  const setAnswer = (question: Question, value: Given): void => setGiven({ ...given, [question.id]: value });
  const open = batch.questions.filter((question) => !isAnswered(question, of(question))).length;
  const submit = async (sending: Promise<unknown>): Promise<void> => {
    leave();
    setSent(true);
    if ((await reportErrors(sending.then(() => true))) === undefined) setSent(false);
  };
  const send = (all = given): void => {
    if (!isSent) void submit(answerQuestions(batch, batch.questions.map((question) => answerOf(question, of(question, all)))));
  };
  const enter = (): void => {
    const fields = element.current?.querySelectorAll(".questions > li")[cursor.at];
    fields?.querySelector<HTMLElement>("input, textarea")?.focus();
  };
  const confirmChoice = (): void => {
    const question = batch.questions[cursor.at];
    if (!question) return;
    const id = choicesOf(question)[cursor.choice];
    let all = given;
    if (!isAnswered(question, of(question))) {
      // Free text is written in the field, which takes the focus.
      if (id === undefined) return enter();
      all = { ...given, [question.id]: marked(question, of(question), id) };
      setGiven(all);
    }
    if (cursor.at + 1 < batch.questions.length) setCursor({ at: cursor.at + 1, choice: 0 });
    else send(all);
  };
  useRequest(element, {
    id: batch.id,
    kind: "question",
    enter,
    forgetDigits: () => {
      if (beforeDigits.current === null) return;
      setGiven(beforeDigits.current.given);
      setCursor(beforeDigits.current.cursor);
    },
    act: (key) => {
      const question = batch.questions[cursor.at];
      const ids = question ? choicesOf(question) : [];
      const digit = /^[1-9]$/.test(key) ? Number(key) : 0;
      beforeDigits.current = digit ? (beforeDigits.current ?? { given, cursor }) : null;
      const id = ids[digit - 1];
      if (question && id !== undefined) {
        setAnswer(question, marked(question, of(question), id));
        setCursor({ ...cursor, choice: digit - 1 });
      } else if (key === "enter") confirmChoice();
      else if (key === "up" || key === "down") setCursor({ ...cursor, choice: Math.max(0, Math.min(ids.length - 1, cursor.choice + (key === "up" ? -1 : 1))) });
      else if (key === "left" || key === "right") setCursor({ at: Math.max(0, Math.min(batch.questions.length - 1, cursor.at + (key === "left" ? -1 : 1))), choice: 0 });
    },
  });
  const sure = [batch.confirm_title, batch.confirm_description].filter(Boolean).join(" ");
  return (
    <RequestPanel
      title="Questions of the model"
      kind="ask"
      testid="question"
      element={element}
      keys={KEYS}
      onAside={onAside}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.repeat) send();
        if (event.key !== "Escape" || !(event.target instanceof HTMLElement)) return;
        event.preventDefault();
        document.querySelector<HTMLElement>("[data-testid=composer]")?.focus();
      }}
      foot={
        <div class="approval-answers two">
          <span class="grow muted">{open ? `${open} of ${batch.questions.length} not answered; they will be skipped` : sure}</span>
          <button type="button" class="button danger" disabled={isSent} aria-disabled={!isActive} onClick={() => mayClick() && void submit(dismissQuestions(batch))}>
            Skip all
          </button>
          <button type="button" class="button primary" data-action="send" disabled={isSent} aria-disabled={!isActive} onClick={() => mayClick() && send()}>
            Send
          </button>
        </div>
      }
    >
      <ol class="questions">
        {batch.questions.map((question, at) => (
          <QuestionItem
            key={question.id}
            question={question}
            number={batch.questions.length > 1 ? at + 1 : 0}
            given={of(question)}
            chosen={panelState.value === "active" && at === cursor.at ? cursor.choice : -1}
            setAnswer={(value) => setAnswer(question, value)}
          />
        ))}
      </ol>
    </RequestPanel>
  );
}

interface QuestionItemProps {
  readonly question: Question;
  readonly number: number;
  readonly given: Given;
  /** The choice that Enter selects, or -1. */
  readonly chosen: number;
  setAnswer(value: Given): void;
}

function QuestionItem({ question, number, given, chosen, setAnswer }: QuestionItemProps): JSX.Element {
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
        <Choices question={question} given={given} chosen={chosen} setAnswer={setAnswer} />
        {isFree ? (
          <textarea class="field" rows={3} aria-label={label} placeholder={label} value={given.text} onInput={(event) => setAnswer({ ...given, text: event.currentTarget.value })} />
        ) : (
          <input class="field" aria-label={label} placeholder={label} value={given.text} onInput={(event) => setAnswer({ ...given, text: event.currentTarget.value })} />
        )}
      </fieldset>
    </li>
  );
}

function Choices({ question, given, chosen, setAnswer }: Omit<QuestionItemProps, "number">): JSX.Element | null {
  if (question.type === "free_text") return null;
  if (question.type === "yes_no") {
    return (
      <div class="choices row">
        {([true, false] as const).map((yes, at) => (
          <label key={String(yes)} class={`choice ${at === chosen ? "chosen" : ""}`}>
            <input type="radio" name={question.id} checked={given.yes === yes} onChange={() => setAnswer({ ...given, yes })} />
            <span class="faint">{at + 1}</span>
            <span>{yes ? "Yes" : "No"}</span>
          </label>
        ))}
      </div>
    );
  }
  const isMany = question.type === "multi_choice";
  return (
    <div class="choices">
      {(question.choices ?? []).map((choice, at) => (
        <label key={choice.id} class={`choice ${at === chosen ? "chosen" : ""}`}>
          <input
            type={isMany ? "checkbox" : "radio"}
            name={question.id}
            checked={given.chosen.includes(choice.id)}
            onChange={() => setAnswer(toggle(question, given, choice.id))}
          />
          <span class="faint">{at + 1}</span>
          <span>
            {choice.label}
            {choice.description && <small class="muted">{choice.description}</small>}
          </span>
        </label>
      ))}
    </div>
  );
}
