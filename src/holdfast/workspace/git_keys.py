"""Git's configuration keys, classified by the effect of their value. Pure.

`git help --config` lists the keys of the installed version; a test requires each of them to be in one of the three
tables. A key that is in no table is treated as one that executes. Only commands that read are considered: a key that
makes `git commit` run a program (`commit.gpgSign`) is harmless here.

Notation: `section: name name ; section.*: name`. `*` as the second part stands for any subsection, as the name for any.
"""

import re

__all__ = ["EXECUTES", "HARMLESS", "PATHS", "WRITTEN_BY_GIT", "is_harmless", "pattern_of"]


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
