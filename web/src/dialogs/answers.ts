// Converts the state of a question form to the answers for the server. Pure.

import type { Question, QuestionAnswer } from "../wire/types.ts";

export interface Given {
  readonly chosen: readonly string[];
  readonly yes: boolean | null;
  readonly text: string;
}

export const NOTHING: Given = { chosen: [], yes: null, text: "" };

/** A question without a choice and without text is skipped. */
export function answerOf(question: Question, given: Given): QuestionAnswer {
  const text = given.text.trim();
  const answer: { -readonly [K in keyof QuestionAnswer]: QuestionAnswer[K] } = { request_id: question.id };
  if (question.type === "yes_no") {
    if (given.yes !== null) answer.yes = given.yes;
    if (text) answer.notes = { _question: text };
    return answer;
  }
  if (question.type !== "free_text" && given.chosen.length) answer.selected_ids = given.chosen;
  if (text) answer.fill_in_text = text;
  return answer;
}

export function isAnswered(question: Question, given: Given): boolean {
  return Object.keys(answerOf(question, given)).length > 1;
}

/** Toggles a choice; a single choice replaces the previous one. */
export function toggle(question: Question, given: Given, id: string): Given {
  if (question.type !== "multi_choice") return { ...given, chosen: [id] };
  const chosen = given.chosen.includes(id) ? given.chosen.filter((one) => one !== id) : [...given.chosen, id];
  return { ...given, chosen };
}
