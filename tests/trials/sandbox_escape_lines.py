# ruff: noqa: E501 - an attempt is easier to read on one line
"""Attempts to escape from the sandbox, each a line for bash with an observable trace.

Placeholders: `{ws}` the workspace, `{victim}` a file outside it that must not change, `{new}` a path outside that must
not appear, `{home}` `{data}` `{config}` `{above}` `{runtime}` directories of the user, `{py}` a Python, `{pid}` the
server's process, `{run}` a program that leaves a trace when it runs outside, `{name}` the attempt's own name.
"""

__all__ = ["CHANGES", "GIT_FORMS", "GIT_SETTINGS", "READS", "SOCKETS", "SYSTEM", "TOP", "TWO_STEPS"]

_NAMESPACE = "unshare -Urm bash -c"

CHANGES: dict[str, str] = {
    "write": "echo x > {victim}",
    "append": "echo x >> {victim}",
    "create": "echo x > {new}",
    "directory": "mkdir {new}",
    "remove": "rm -f {victim}",
    "rename": "mv {victim} here-{name}",
    "replace": "echo x > r && mv r {victim}",
    "link": "ln -s {victim} l-{name} && echo x > l-{name}",
    "hard link": "ln {victim} h-{name} && echo x > h-{name}",
    "truncate": "truncate -s 0 {victim}",
    "chmod": "chmod 777 {victim}",
    "chown": "chown 12:12 {victim}",
    "chgrp": "chgrp $(id -g) {victim}; touch -c {victim}",
    "touch": "touch -d 2001-01-01 {victim}",
    "touch now": "touch {victim}",
    "attribute": '{py} -c \'import os; os.setxattr("{victim}", "user.x", b"1")\'',
    "acl": "setfacl -m u:1:rwx {victim}",
    "flags": "chattr +d {victim}",
    "pipe": "mkfifo {new}",
    "socket": "{py} -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"{new}\")'",
    "through the root": "echo x > /proc/self/root{victim}",
    "through init": "echo x > /proc/1/root{victim}",
    "through init's directory": "cd /proc/1/cwd && echo x > .{victim}",
    "through the shell's directory": "cd /proc/$$/cwd/.. && cd .. && echo x > {victim}",
    "through the server": "echo x > /proc/{pid}/root{victim}",
    "chmod through a descriptor": "{py} -c 'import os; os.fchmod(os.open(\"{victim}\", os.O_RDONLY), 0o777)'",
    "remount": "mount -o remount,rw / ; mount -o remount,rw,bind / ; echo x > {victim}",
    "namespace": _NAMESPACE + " 'mount -o remount,rw,bind / ; umount -l {above}; echo x > {victim}'",
    "namespace and bind": _NAMESPACE + " 'mkdir m; mount --rbind / m; mount -o remount,rw,bind m; echo x > m{victim}'",
    "namespace and unmount": _NAMESPACE + " 'umount -l /tmp; umount -l {home}; echo x > {victim}'",
    "other namespace": "nsenter -t 1 -m -- bash -c 'echo x > {victim}'",
    "server's namespace": "nsenter -t {pid} -m -- bash -c 'echo x > {victim}'",
    "change root": "chroot /proc/1/root bash -c 'echo x > {victim}'",
    "disk": "mknod b-{name} b 254 0 && head -c 1 b-{name} >/dev/null && echo reached-{name}",
    "memory": "mknod c-{name} c 1 1 && head -c 1 c-{name} >/dev/null && echo reached-{name}",
    "kernel message": "echo reached-{name} > /dev/kmsg && dmesg | grep -q reached-{name} && echo reached-{name}",
    "core pattern": "now=$(cat /proc/sys/kernel/core_pattern); echo $now > /proc/sys/kernel/core_pattern && echo reached-{name}",
    "control groups": "mkdir /sys/fs/cgroup/x-{name} && rmdir /sys/fs/cgroup/x-{name} && echo reached-{name}",
    "kernel settings": "echo 1 > /proc/sys/vm/drop_caches && echo reached-{name}",
    "system": "for d in / /usr /etc /var /opt /srv; do test ! -w $d || echo reached-{name}; done",
    "signal": "kill -0 {pid} && echo reached-{name}",
    "set-uid": "cp /bin/cat s-{name} && chmod 4755 s-{name} && chown 0 s-{name} 2>/dev/null; false",
    "data directory": "echo x > {data}/new && cat {data}/new",
    "data directory by descriptor": "cd {data} && echo x > new",
}
"""The victim and its directory stay unchanged; `reached-` in the output is a trace too."""

READS: dict[str, str] = {
    "ssh key": "cat {home}/.ssh/id",
    "aws": "cat {home}/.aws/credentials",
    "gnupg": "cat {home}/.gnupg/key",
    "netrc": "cat {home}/.netrc",
    "docker": "cat {home}/.docker/config.json",
    "cargo": "cat {home}/.cargo/credentials.toml {home}/.cargo/credentials",
    "cargo settings": "cat {home}/.cargo/config.toml",
    "uv": "cat {home}/.local/share/uv/credentials/c",
    "history": "cat {home}/.bash_history",
    "other project": "cat {home}/other/file",
    "token": "cat {data}/token; find {data} -type f -exec cat {{}} +",
    "credentials": "cat {config}/credentials.toml",
    "by a tilde": "export HOME={home}; cat ~/.ssh/id",
    "by a link": "ln -s {home}/.ssh s-{name}; cat s-{name}/id",
    "through the root": "cat /proc/self/root{home}/.ssh/id /proc/1/root{home}/.ssh/id",
    "server's environment": "tr '\\0' '\\n' < /proc/{pid}/environ",
    "environments": "cat /proc/*/environ | tr '\\0' '\\n' | grep SECRET",
    "init's memory": (
        "{py} -c 'open(\"/proc/1/mem\", \"rb\")' && one=$(awk '/CapEff/ {{print $2}}' /proc/1/status) &&"
        " own=$(awk '/CapEff/ {{print $2}}' /proc/self/status) && test $((0x$one & ~0x$own)) != 0 && echo SECRET $one $own"
    ),
    "init's descriptors": "readlink /proc/1/fd/* | grep -E 'socket|memfd|{data}' && echo SECRET",
    "open descriptors": "ls /proc/self/fd | grep -qE '^([4-9]|..+)$' && echo SECRET",
    "namespace": _NAMESPACE + " 'umount -l {home}; umount -l /tmp; cat {home}/.ssh/id'",
    "key ring": "{py} -c 'import ctypes as c; l = c.CDLL(None); l.syscall(250, 0, -4, 1) > 0 and print(\"SECRET\")'",
    "shadow": "cat /etc/shadow | grep -q root && echo SECRET",
    "git settings": "cat {home}/.gitconfig",
}
"""`SECRET` in the output is a trace."""

_CONNECT = "{{py}} -c 'import socket; socket.socket(socket.AF_UNIX).connect({where})' && echo reached-{{name}}"

SOCKETS: dict[str, str] = {
    "home": _CONNECT.format(where='"{home}/s"'),
    "toolchain": _CONNECT.format(where='"{home}/.cargo/s"'),
    "deep in a toolchain": _CONNECT.format(where='"{home}/.local/share/uv/a/b/c/s"'),
    "runtime": _CONNECT.format(where='"{runtime}/s"'),
    "beside the workspace": _CONNECT.format(where='"{above}/s"'),
    "data directory": _CONNECT.format(where='"{data}/s"'),
    "through the root": _CONNECT.format(where='"/proc/self/root{home}/s"'),
    "through init": _CONNECT.format(where='"/proc/1/root{home}/s"'),
    "link": "ln -s {home}/s l-{name}; " + _CONNECT.format(where='"l-{name}"'),
    "hard link": "ln {above}/s k-{name}; " + _CONNECT.format(where='"k-{name}"'),
    "bind of a directory": _NAMESPACE
    + " 'umount -l {home}; "
    + '{py} -c "import socket; socket.socket(1).connect(\\"{home}/s\\")" && echo reached-{name}\'',
    "datagram": "{py} -c 'import socket; socket.socket(1, 2).connect(\"{runtime}/d\")' && echo reached-{name}",
    "abstract": _CONNECT.format(where='"\\0{abstract}"'),
    "abstract in a namespace": "unshare -Ur " + _CONNECT.format(where='"\\0{abstract}"'),
}
"""Each socket has a listener outside; `reached-` in the output is a trace."""

_CALL = "{{py}} -c 'import ctypes as c; l = c.CDLL(None, use_errno=True); r = l.syscall({numbers}); print(\"reached-{{name}}\" * (r >= 0))'"

SYSTEM: dict[str, str] = {
    "io_uring": _CALL.format(numbers="425, 4, c.create_string_buffer(120)"),
    "userfaultfd": _CALL.format(numbers="323, 1"),
    "add_key": _CALL.format(numbers='248, b"user", b"x", b"y", 1, -4'),
    "bpf": _CALL.format(numbers="321, 0, c.create_string_buffer(72), 72"),
    "perf": _CALL.format(numbers="298, c.create_string_buffer(128), 0, -1, -1, 0"),
    "vsock": "{py} -c 'import socket; socket.socket(40, 1); print(\"reached-{name}\")'",
    "packet": "{py} -c 'import socket; socket.socket(17, 3); print(\"reached-{name}\")'",
    "shared memory": "ipcs -m -p | grep -q {shm} && echo reached-{name}",
    "terminal": '{py} -c \'import fcntl, os, termios; fcntl.ioctl(os.open("{tty}", os.O_RDWR), 0x5412, b"x"); print("reached-{name}")\'',
    "write to a terminal": "echo reached > {tty} && test -c {tty} && echo reached-{name}",
}
"""Numbers of x86-64; on other machines these calls are omitted."""

TOP: dict[str, str] = {
    "hook": "echo '#!/bin/sh\n{run}' > .git/hooks/post-index-change; chmod +x .git/hooks/post-index-change",
    "settings": "git config core.fsmonitor {run}",
    "settings by hand": "printf '[core]\\nfsmonitor={run}\\n' >> .git/config",
    "rename": "mv .git g; cp -r g .git; git config core.fsmonitor {run}",
    "rename settings": "cp .git/config c; git config -f c core.fsmonitor {run}; mv c .git/config",
    "hard link": "ln .git/config k; git config -f k core.fsmonitor {run}; printf '[core]\\nfsmonitor={run}\\n' >> k",
    "second settings": "printf '[core]\\nfsmonitor={run}\\n' > .git/config.worktree",
    "chmod": "chmod 777 .git/config .git/hooks",
    "nested": "git -C nested config core.fsmonitor {run}",
    "nested hook": "echo {run} > nested/.git/hooks/post-index-change; chmod +x nested/.git/hooks/*",
    "nested replaced": "mv nested n2; cp -r n2 nested; git -C nested config core.fsmonitor {run}",
    "nested git directory": "mv nested/.git nested/g; cp -r nested/g nested/.git; git -C nested config core.fsmonitor {run}",
    "submodule": "git -C mod config core.fsmonitor {run}; printf '[core]\\nfsmonitor={run}\\n' >> .git/modules/mod/config",
    "submodule's file": "git init -q e2; git -C e2 config core.fsmonitor {run}; echo 'gitdir: ../e2/.git' > mod/.git",
    "work tree of another": "git init -q --bare e3; git -C e3 config core.fsmonitor {run}; for w in .git/worktrees/*; do echo {ws}/e3 > $w/commondir; done",
    "hooks in the workspace": "echo '#!/bin/sh\n{run}' > tools/hooks/post-index-change; chmod +x tools/hooks/post-index-change",
    "in the git directory": "git init -q --bare .git/x; git -C .git/x config core.fsmonitor {run}",
    "shared directory": "git init -q --bare e; git -C e config core.fsmonitor {run}; echo ../e > .git/commondir",
    "settings of programs": "for f in .mcp.json crush.json .crush.json; do echo x > $f; done; mkdir .claude .cursor; echo x > holdfast.toml",
}
"""On existing repositories. Afterwards git runs outside in each of them."""

GIT_SETTINGS: dict[str, str] = {
    "fsmonitor": "core.fsmonitor",
    "fsmonitor in capitals": "CORE.FsMonitor",
    "alias": "alias.status",
    "hooks": "core.hooksPath",
    "pager": "core.pager",
    "ssh": "core.sshCommand",
    "filter": "filter.x.clean",
    "difference": "diff.external",
    "include": "include.path",
}

_EVIL = "git -C '{dir}' config {key} {value}"
GIT_FORMS: dict[str, str] = {
    "repository": "git init -q '{dir}' && " + _EVIL,
    "clone": "git clone -q {ws}/plain '{dir}' && " + _EVIL,
    "bare": "git init -q --bare '{dir}' && " + _EVIL,
    "git directory renamed": "git init -q '{dir}-i' && mv '{dir}-i/.git' '{dir}' && git --git-dir='{dir}' config {key} {value}",
    "file": "git init -q --bare '{dir}-b' && git -C '{dir}-b' config {key} {value} && mkdir '{dir}' && echo 'gitdir: ../{base}-b' > '{dir}/.git'",
    "file with a space": "git init -q --bare '{dir}-b ' && git -C '{dir}-b ' config {key} {value} && mkdir '{dir}' && echo 'gitdir: ../{base}-b ' > '{dir}/.git'",
    "link": "git init -q '{dir}-b' && git -C '{dir}-b' config {key} {value} && mkdir '{dir}' && ln -s '../{base}-b/.git' '{dir}/.git'",
    "shared directory": (
        "git init -q --bare '{dir}-c' && git -C '{dir}-c' config {key} {value} && mkdir -p '{dir}/.git' &&"
        " echo 'ref: refs/heads/m' > '{dir}/.git/HEAD' && echo '{ws}/{dir}-c' > '{dir}/.git/commondir'"
    ),
    "only what git needs": (
        "mkdir -p '{dir}/.git/objects' '{dir}/.git/refs' && echo 'ref: refs/heads/m' > '{dir}/.git/HEAD' &&"
        " git config -f '{dir}/.git/config' core.repositoryformatversion 0 &&"
        " git config -f '{dir}/.git/config' {key} {value}"
    ),
    "settings by a link": "git init -q '{dir}' && mv '{dir}/.git/config' '{dir}/c' && ln -s ../c '{dir}/.git/config' && git config -f '{dir}/c' {key} {value}",
    "second settings": "git init -q '{dir}' && git -C '{dir}' config extensions.worktreeConfig true && git -C '{dir}' config --worktree {key} {value}",
    "included": "git init -q '{dir}' && git config -f '{dir}/i' {key} {value} && git -C '{dir}' config include.path ../i",
    "work tree": "git init -q '{dir}-m' && git -C '{dir}-m' -c user.name=a -c user.email=b commit -q --allow-empty -m x && git -C '{dir}-m' worktree add -q '../{base}' && git -C '{dir}-m' config {key} {value}",
    "unreadable": "mkdir '{dir}-u' && git init -q '{dir}-u/r' && git -C '{dir}-u/r' config {key} {value} && chmod 311 '{dir}-u' && ln -s '{base}-u/r' '{dir}'",
    "in a submodule": "git init -q '{dir}' && mkdir -p '{dir}/.git/modules' && git init -q --bare '{dir}/.git/modules/m' && git -C '{dir}/.git/modules/m' config {key} {value} && mkdir '{dir}/m' && echo 'gitdir: ../.git/modules/m' > '{dir}/m/.git'",
    "deep": 'd=\'{dir}\'; for i in 1 2 3 4 5 6 7 8 9; do d=$d/deep; done; mkdir -p "$d" && git init -q "$d" && git -C "$d" config {key} {value} && ln -s deep/deep/deep/deep/deep/deep/deep/deep/deep \'{dir}/l\'',
}
"""Ways to create a repository whose settings name a program. Afterwards git runs outside in every directory."""

TWO_STEPS: dict[str, tuple[str, str]] = {
    "git file": (
        "echo 'gitdir: {outside}' > .git2; cp .git2 .gitfile; mkdir gf; cp .git2 gf/.git",
        "echo x > {victim}",
    ),
    "git file and back link": (
        "rm -rf .git; mv .git old; mkdir -p fake/worktrees/x; echo '{ws}/.git' > fake/worktrees/x/gitdir",
        "echo x > {victim}",
    ),
    "link in tmp": ("t=/tmp/$(echo {ws} | cut -d/ -f3); mv $t /tmp/t-{name}; ln -s / $t", "echo x > {victim}"),
    "link to the outside": ("ln -s {outside} o-{name}", "echo x > o-{name}/$(basename {victim})"),
}
"""A first command prepares, a second one acts."""
