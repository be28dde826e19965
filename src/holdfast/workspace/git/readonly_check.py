"""Decide whether a read-only git command can run in a directory without running another program.

Git itself is queried, in the environment in which the command would run: `git config --list` reads exactly the files
that the command would read, includes and conditions evaluated, and executes nothing. Every key that the repository
sets must be known to be harmless. Keys of the system's and the user's own configuration are not examined. Git
descends into submodules, so each one that is checked out is examined in the same way.

The answer is valid at the time of the query. A process that changes the configuration between query and command can
run programs already.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from subprocess import CompletedProcess

import msgspec

from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.git.git_command import find_git, run_in_place
from holdfast.workspace.git.repository import repository_of
from holdfast.workspace.process.shell_launch import Shell, command_environment

__all__ = [
    "EXECUTES",
    "HARMLESS",
    "PATHS",
    "WRITTEN_BY_GIT",
    "examined_git",
    "git_is_quiet",
    "git_runs_nothing_else",
    "is_harmless",
    "pattern_of",
]


# Git's configuration keys, classified by the effect of their value. Pure.


def _keys(text: str) -> frozenset[str]:
    """Return key patterns in lower case, such as `filter.*.clean`."""
    found: set[str] = set()
    for section in " ".join(text.split()).split(" ; "):
        name, _, keys = section.partition(": ")
        found.update(f"{name}.{key}".lower() for key in keys.split())
    return frozenset(found)


def pattern_of(key: str) -> str:
    """Return the pattern of a key: lower case, with `*` for a subsection, and for a placeholder as its name."""
    section, _, rest = key.partition(".")
    _, dot, name = rest.rpartition(".")
    name = "*" if re.fullmatch(r"<.*>", name) else name
    return f"{section}.*.{name}".lower() if dot else f"{section}.{name}".lower()


def is_harmless(key: str) -> bool:
    """Return whether a key, as `git config --list` spells it, can neither run a program nor lead git elsewhere."""
    pattern = pattern_of(key)
    section = pattern.rpartition(".")[0]
    if pattern in EXECUTES or pattern in PATHS:
        return False
    return pattern in HARMLESS or f"{section}.*" in HARMLESS


EXECUTES = _keys("""
alias: * ; branch.*: mergeOptions ; browser.*: cmd path ; bundle: * heuristic mode version ; bundle.*: * uri ; core:
alternateRefsCommand askPass editor fsmonitor gitProxy hooksPath pager sshCommand ; credential.*: * ; credential:
helper ; diff.*: cachetextconv command textconv ; diff: external guitool submodule tool ; difftool.*: cmd path ;
extensions: partialClone ; fetch: bundleCreationToken bundleURI ; filter.*: clean process smudge ; format: pretty ;
gc: recentObjectsHook ; gpg.*: defaultKeyCommand program ; gpg: format program ; guitool.*: cmd ; help: autoCorrect
browser ; hook.*: command enabled event parallel ; hook: jobs ; imap: tunnel ; init: templateDir ; instaweb: browser
httpd ; interactive: diffFilter ; log: showSignature ; man.*: cmd path ; man: viewer ; merge.*: driver ; merge:
guitool tool verifySignatures ; mergetool.*: cmd path ; pager: * ; pretty: * ; promisor: acceptFromServer
acceptFromServerUrl checkFields quiet sendFields storeFields ; protocol.*: allow ; protocol: allow ; pull: octopus
twohead ; rebase: instructionFormat ; receive: procReceiveRefs ; remote.*: partialCloneFilter promisor proxy pushurl
receivepack uploadpack url vcs ; sendemail.*: * ; sendemail: ccCmd headerCmd sendmailCmd smtpServer toCmd ; sequence:
editor ; status: submoduleSummary ; submodule.*: update ; submodule: recurse ; tar.*: command remote ; trailer.*: cmd
command ; transfer: bundleURI ; uploadpack: packObjectsHook ; url.*: insteadOf pushInsteadOf ; web: browser
""")
"""The value names a program, makes git start one, or makes git contact another machine."""

PATHS = _keys("""
blame: ignoreRevsFile ; commit: template ; core: attributesFile excludesFile worktree ; diff: orderFile ; fetch.*:
skipList ; format: outputDirectory signatureFile ; fsck: skipList ; fsmonitor: socketDir ; gc: repackFilterTo ;
gitcvs: dbName logFile ; gpg.*: allowedSignersFile revocationFile ; help: htmlPath ; http.*: * ; http: cookieFile
proxySSLCAInfo proxySSLCert proxySSLKey saveCookies sslCAInfo sslCAPath sslCert sslKey ; include: path ; includeIf.*:
path ; instaweb: modulePath ; mailmap: file ; receive.*: skipList ; sendemail.*: file ; sendemail: aliasesFile
smtpSSLCertPath ; submodule: alternateLocation ; trace2: eventTarget normalTarget perfTarget
""")
"""The value names a file or directory that git reads or writes."""

HARMLESS = _keys("""
add.*: useBuiltin ; add: ignoreErrors ; advice: * ; advice.*: * ; am: keepcr messageId threeWay ; apply:
ignoreWhitespace whitespace ; attr: tree ; author: email name ; bitmapPseudoMerge.*: decay maxMerges pattern
sampleRate stableSize stableThreshold threshold ; blame: blankBoundary coloring date markIgnoredLines
markUnblamableLines showEmail showRoot ; branch.*: * ; branch: autoSetupMerge autoSetupRebase sort ; checkout:
defaultRemote guess thresholdForParallelism workers ; clean: requireForce ; clone: defaultRemoteName filterSubmodules
rejectShallow ; color: * ; color.*: * ; column: branch clean status tag ui ; commit: cleanup gpgSign status verbose ;
commitGraph: changedPaths changedPathsVersion generationVersion maxNewFilters readChangedPaths ; committer: email name
; completion: commands ; core: abbrev alternateRefsPrefixes autocrlf bare bigFileThreshold checkRoundtripEncoding
checkStat commentChar commentString commitGraph compression createObject deltaBaseCacheLimit eol fileMode
filesRefLockTimeout fsmonitorHookVersion fsync fsyncMethod fsyncObjectFiles hideDotFiles ignoreCase ignoreStat
lockfilePid logAllRefUpdates looseCompression maxTreeDepth multiPackIndex notesRef packedGitLimit packedGitWindowSize
packedRefsTimeout precomposeUnicode preferSymlinkRefs preloadIndex protectHFS protectNTFS quotePath
repositoryFormatVersion restrictinheritedhandles safecrlf sharedRepository sparseCheckout sparseCheckoutCone
splitIndex symlinks trustctime unsetenvvars untrackedCache useReplaceRefs warnAmbiguousRefs whitespace ; credential:
interactive protectProtocol sanitizePrompt useHttpPath username ; credentialCache: ignoreSIGHUP ; credentialStore:
lockTimeoutMS ; diff.*: algorithm binary trustExitCode wordRegex xfuncname ; diff: algorithm autoRefreshIndex
colorMoved colorMovedWS context dirstat dstPrefix ignoreSubmodules indentHeuristic interHunkContext mnemonicPrefix
noprefix relative renameLimit renames srcPrefix statGraphWidth statNameWidth suppressBlankEmpty trustExitCode
wordRegex wsErrorHighlight ; difftool: prompt trustExitCode ; extensions: compatObjectFormat noop objectFormat
preciousObjects refStorage relativeWorktrees submodulePathConfig worktreeConfig ; fastimport: unpackLimit ; feature: *
experimental manyFiles ; fetch.*: * ; fetch: all followRemoteHEAD fsckObjects hideRefs negotiationAlgorithm output
parallel prune pruneTags recurseSubmodules showForcedUpdates unpackLimit writeCommitGraph ; filter.*: required ;
format: attach cc commitListFormat coverFromDescription coverLetter encodeEmailHeaders filenameMaxLength
forceInBodyFrom from headers mboxrd noprefix notes numbered signature signOff subjectPrefix suffix thread to
useAutoBase ; fsck: * ; fsmonitor: allowRemote ; gc.*: reflogExpire reflogExpireUnreachable ; gc: aggressiveDepth
aggressiveWindow auto autoDetach autoPackLimit bigPackThreshold cruftPacks logExpiry maxCruftSize packRefs pruneExpire
reflogExpire reflogExpireUnreachable repackFilter rerereResolved rerereUnresolved worktreePruneExpire writeCommitGraph
; gitcvs: allBinary commitMsgAnnotation dbDriver dbPass dbTableNamePrefix dbUser enabled usecrlfattr ; gitweb: avatar
blame category description grep highlight owner patches pickaxe remote_heads showSizes snapshot url ; gpg:
minTrustLevel ; grep: column extendedRegexp fallbackToNoIndex fullName lineNumber patternType threads ; gui: * ;
guitool.*: argPrompt confirm needsFile noConsole noRescan prompt revPrompt revUnmerged title ; help: format ; http.*:
extraHeader ; http: curloptResolve delegation emptyAuth extraHeader followRedirects keepAliveCount keepAliveIdle
keepAliveInterval lowSpeedLimit lowSpeedTime maxRequests maxRetries maxRetryTime minSessions noEPSV pinnedPubkey
postBuffer proactiveAuth proxy proxyAuthMethod proxySSLCertPasswordProtected retryAfter schannelCheckRevoke
schannelUseSSLCAInfo sslBackend sslCertPasswordProtected sslCertType sslCipherList sslKeyType sslTry sslVerify
sslVersion userAgent version ; i18n: commitEncoding logOutputEncoding ; imap: authMethod folder host pass port
preformattedHTML sslverify user ; index: recordEndOfIndexEntries recordOffsetTable skipHash sparse threads version ;
init: defaultBranch defaultObjectFormat defaultRefFormat ; instaweb: local port ; interactive: singleKey ; lfs.*:
access locksVerify ; lfs: repositoryFormatVersion ; log: abbrevCommit date decorate diffMerges excludeDecoration
follow graphColors initialDecorationSet mailmap showRoot ; lsrefs: unborn ; mailinfo: scissors ; mailmap: blob ;
maintenance.*: auto batchSize enabled schedule splitFactor ; maintenance: auto autoDetach strategy ; merge.*: name
recursive ; merge: autoStash branchdesc conflictStyle defaultToUpstream directoryRenames ff log renameLimit renames
renormalize stat suppressDest verbosity ; mergetool.*: hasOutput hideResolved layout trustExitCode useAutoMerge ;
mergetool: hideResolved keepBackup keepTemporaries prompt writeToTemp ; notes.*: * mergeStrategy ; notes: displayRef
mergeStrategy rewriteMode rewriteRef ; pack: allowPackReuse compression deltaCacheLimit deltaCacheSize depth
indexVersion island islandCore packSizeLimit preferBitmapTips readReverseIndex threads useBitmaps usePathWalk
useSparse window windowMemory writeBitmapHashCache writeBitmapLookupTable writeReverseIndex ; protocol: version ;
pull: ff rebase ; push: autoSetupRemote default followTags gpgSign negotiate pushOption recurseSubmodules useBitmaps
useForceIfIncludes ; rebase: abbreviateCommands autoSquash autoStash backend forkPoint maxLabelLength
missingCommitsCheck rebaseMerges rescheduleFailedExec stat updateRefs ; receive.*: * ; receive: advertiseAtomic
advertisePushOptions autogc certNonceSeed certNonceSlop denyCurrentBranch denyDeleteCurrent denyDeletes
denyNonFastForwards fsckObjects hideRefs keepAlive maxInputSize shallowUpdate unpackLimit updateServerInfo ; refs:
hideRefs ; reftable: blockSize geometricFactor indexObjects lockTimeout restartInterval ; remote.*: fetch
followRemoteHEAD gh-resolved mirror negotiationInclude negotiationRestrict proxyAuthMethod prune pruneTags push
serverOption skipDefaultUpdate skipFetchAll tagOpt ; remote: pushDefault ; remotes: * ; repack: cruftDepth
cruftThreads cruftWindow cruftWindowMemory midxMustContainCruft midxNewLayerThreshold midxSplitFactor packKeptObjects
updateServerInfo useDeltaBaseOffset useDeltaIslands writeBitmaps ; replay: refAction ; rerere: autoUpdate enabled ;
revert: reference ; safe: bareRepository directory ; sendemail.*: blob ; sendemail: 8bitEncoding aliasFileType
annotate bcc cc chainReplyTo composeEncoding confirm envelopeSender forbidSendmailVariables from identity
imapSentFolder mailmap multiEdit outlookIDFix signedoffbycc signedOffCc smtpAuth smtpBatchSize smtpDomain
smtpEncryption smtpPass smtpReloginDelay smtpServerOption smtpServerPort smtpUser suppresscc suppressFrom thread to
transferEncoding useImapOnly validate xmailer ; showBranch: default ; sideband.*: allowControlCharacters ; sideband:
allowControlCharacters ; sparse: expectFilesOutsideOfPatterns ; splitIndex: maxPercentChange sharedIndexExpire ; ssh:
variant ; stash: index showIncludeUntracked showPatch showStat ; status: aheadBehind branch compareBranches
displayCommentPrefix relativePaths renameLimit renames short showStash showUntrackedFiles ; submodule.*: active branch
fetchRecurseSubmodules gitdir ignore shallow url ; submodule: active alternateErrorStrategy fetchJobs
propagateBranches ; tag: forceSignAnnotated gpgSign sort ; tar: umask ; trace2: configParams destinationDebug envVars
eventBrief eventNesting maxFiles normalBrief perfBrief ; trailer.*: ifexists ifmissing key where ; trailer: ifexists
ifmissing separators where ; transfer: advertiseObjectInfo advertiseSID credentialsInUrl fsckObjects hideRefs
unpackLimit ; uploadarchive: allowUnreachable ; uploadpack: advertiseBundleURIs allowAnySHA1InWant allowFilter
allowReachableSHA1InWant allowRefInWant allowSidebandAll allowTipSHA1InWant blobPackfileUri hideRefs keepAlive ;
uploadpackfilter.*: allow maxDepth ; uploadpackfilter: allow ; user: email name signingKey useConfigOnly ;
versionsort: suffix ; worktree: guessRemote useRelativePaths
""")
"""Neither. `branch.*`, `lfs` and `remote.*.gh-resolved` are written by other tools too."""

WRITTEN_BY_GIT = _keys(
    "branch.*: merge rebase remote ; core: bare fileMode ignoreCase logAllRefUpdates precomposeUnicode"
    " repositoryFormatVersion symlinks worktree ; extensions: objectFormat refStorage worktreeConfig"
    " relativeWorktrees ; init: defaultBranch ; remote.*: fetch tagOpt url ; submodule: active"
    " ; submodule.*: active branch url"
)
"""Keys that `git init`, `git clone`, `git submodule add` and `git worktree add` write themselves. The values of
`core.worktree` and of a URL still have to be examined."""


_SECONDS = 5.0
_MAX_SUBMODULES = 64
_HOOK = "hooks/post-index-change"
"""The only hook of commands that read: some of them refresh the index."""
_LFS = frozenset(("git-lfs clean -- %f", "git-lfs smudge -- %f", "git-lfs filter-process"))
_OWN_SCOPES = frozenset(("system", "global", "command"))
_GITLINK = re.compile(rb"(?:\A|\0)160000 [0-9a-f]+ \d\t([^\0]+)")


_ANSWER: ContextVar[tuple[str, bool] | None] = ContextVar("git_answer", default=None)
"""Directory examined for the current call, and the result."""


@asynccontextmanager
async def examined_git(
    directory: str, shell: Shell, client: Mapping[str, str], line: str
) -> AsyncGenerator[None, None]:
    """Examine a directory before a shell line is classified. The result is valid within the block.

    The classification is synchronous, and the query takes too long for the event loop.
    """
    environment = shell.environment(directory, client)
    is_quiet = "git" in line and await asyncio.to_thread(git_runs_nothing_else, directory, environment)
    token = _ANSWER.set((directory, is_quiet))
    try:
        yield
    finally:
        _ANSWER.reset(token)


def git_is_quiet(directory: str) -> bool:
    """Return the result for the current call; examine the directory now if there is none."""
    answer = _ANSWER.get()
    if answer is not None and answer[0] == directory:
        return answer[1]
    return git_runs_nothing_else(directory, command_environment(os.environ, {}, cwd=directory))


class _Doubt(Exception):
    """The repository can run a program, or the answer is not known."""


class _Setting(msgspec.Struct, frozen=True):
    scope: str
    origin: str
    key: str
    value: str


def git_runs_nothing_else(directory: str, environment: Mapping[str, str]) -> bool:
    """Return whether git, used for reading in a directory with this environment, starts no other program. Blocks."""
    program = find_git(environment, directory)
    if program is None:
        return False
    try:
        _Check(program).repository(directory, environment)
    except _Doubt:
        return False
    return True


class _Check:
    def __init__(self, program: str) -> None:
        self._program = program
        self._end = time.monotonic() + _SECONDS
        self._submodules = 0

    def repository(self, directory: str, environment: Mapping[str, str], *, is_submodule: bool = False) -> None:
        """Examine a repository and its submodules. Raises `_Doubt` unless it is harmless."""
        done = self._git(directory, environment, "rev-parse", "--is-inside-work-tree", "--git-path", _HOOK)
        nearest = directory if is_submodule else repository_of(directory)
        if nearest is None and done.returncode == 128 and b"not a git repository" in done.stderr:
            return
        inside, _, hook = os.fsdecode(_output(done)).partition("\n")
        if inside != "true" or os.path.lexists(os.path.join(directory, hook)):
            raise _Doubt
        top = os.fsdecode(_output(self._git(directory, environment, "rev-parse", "--show-toplevel")))
        has_own_top = nearest is not None and os.path.realpath(nearest) == os.path.realpath(top)
        for setting in self._settings(directory, environment):
            is_users = setting.scope in _OWN_SCOPES and not _is_inside(setting.origin, directory, top)
            if not is_users and not _is_accepted(setting, has_own_top=has_own_top):
                raise _Doubt
        self._check_submodules(top, environment)

    def _settings(self, directory: str, environment: Mapping[str, str]) -> Iterator[_Setting]:
        listing = self._git(directory, environment, "config", "--list", "-z", "--show-scope", "--show-origin")
        fields = os.fsdecode(_output(listing, end="")).split("\0")
        if len(fields) % 3 != 1 or fields[-1]:
            raise _Doubt
        for scope, origin, text in zip(fields[0:-1:3], fields[1::3], fields[2::3], strict=True):
            key, _, value = text.partition("\n")
            yield _Setting(scope, origin, key, value)

    def _check_submodules(self, top: str, environment: Mapping[str, str]) -> None:
        """Git enters every submodule of the index that has a `.git`, with GIT_DIR set to that."""
        listing = self._git(top, environment, "ls-files", "--stage", "-z")
        for path in map(os.fsdecode, _GITLINK.findall(_output(listing, end=""))):
            place = os.path.join(top, path)
            if not os.path.lexists(os.path.join(place, ".git")):
                continue
            self._submodules += 1
            if self._submodules > _MAX_SUBMODULES:
                raise _Doubt
            inner = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
            self.repository(place, {**inner, "GIT_DIR": ".git"}, is_submodule=True)

    def _git(self, directory: str, environment: Mapping[str, str], *words: str) -> CompletedProcess[bytes]:
        left = self._end - time.monotonic()
        done = run_in_place(self._program, words, directory, environment, left) if left > 0 else None
        if done is None:
            raise _Doubt
        return done


def _output(done: CompletedProcess[bytes], end: str = "\n") -> bytes:
    if done.returncode != 0:
        raise _Doubt
    return done.stdout.removesuffix(end.encode())


def _is_inside(origin: str, directory: str, top: str) -> bool:
    """Return whether a setting is from a file of the project, regardless of the reported scope."""
    kind, _, path = origin.partition(":")
    if kind != "file":
        return False
    real = os.path.realpath(os.path.join(directory, path))
    return any(is_within(os.path.realpath(folder), real) for folder in (directory, top))


def _is_accepted(setting: _Setting, *, has_own_top: bool) -> bool:
    if is_harmless(setting.key):
        return True
    match pattern_of(setting.key):
        case "core.hookspath":
            # The hook itself was searched for in the directory named here.
            return True
        case "core.fsmonitor":
            return setting.value in ("true", "false")
        case "core.worktree":
            # Git writes it for submodules.
            return has_own_top
        case "remote.*.url" | "remote.*.pushurl":
            return "::" not in setting.value
        case "filter.*.clean" | "filter.*.smudge" | "filter.*.process":
            return setting.key.startswith("filter.lfs.") and setting.value in _LFS
        case _:
            return False
