import type { JSX } from "preact";
import { progressOf } from "../cards/tool-data.ts";
import { session } from "../store.ts";

/** The to-do list of the session, maintained by the model. */
export function Plan(): JSX.Element {
  const todos = session.value?.todos ?? [];
  if (!todos.length) return <p class="empty">There is no plan.</p>;
  const done = todos.filter((todo) => todo.status === "completed").length;
  return (
    <>
      <div class="panel-tools">
        <span class="muted">{progressOf(todos)}</span>
        <progress class="grow" max={todos.length} value={done} aria-label={progressOf(todos)} />
      </div>
      <ul class="todos large">
        {todos.map((todo, at) => (
          <li key={at} class={todo.status === "completed" ? "done" : todo.status === "in_progress" ? "doing" : "todo"}>
            <span class="todo-mark" aria-hidden="true" />
            <span class="visually-hidden">{todo.status.replace("_", " ")}: </span>
            {todo.status === "in_progress" ? todo.active_form || todo.content : todo.content}
          </li>
        ))}
      </ul>
    </>
  );
}
