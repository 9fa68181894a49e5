// Made by scripts/types from the description of the API; a test says when it has to be made again.
// Read by the type checker only: the browser never loads it.

declare namespace Wire {
  interface Bodies {
    "POST /api/windows": NewWindow;
    "PATCH /api/windows/{window_id}": WindowChange;
    "POST /api/windows/{window_id}/turns": AddTurns;
    "POST /api/windows/{window_id}/inject": Inject;
    "POST /api/windows/{window_id}/say": Say;
    "POST /api/windows/{window_id}/answer": Answer;
    "POST /api/windows/{window_id}/edit": Edit;
    "POST /api/windows/{window_id}/switch": OneTurn;
    "POST /api/windows/{window_id}/rewind": OneTurn;
    "POST /api/windows/{window_id}/branch": BranchOff;
    "POST /api/windows/{window_id}/chunks/undelete": Undelete;
    "POST /api/windows/{window_id}/chunks/{key}/wrong": Wrong;
    "PUT /api/windows/{window_id}/chunks/{key}/tags": ChunkTags;
    "PATCH /api/persona": PersonaChange;
    "PUT /api/presets": SavePreset;
    "POST /api/presets/rename": RenamePreset;
    "POST /api/presets/apply": ApplyPreset;
    "PUT /api/memory/entry": Keep;
    "PUT /api/notes": ReplaceNotes;
    "POST /api/model": ChooseModel;
    "PUT /api/engines/{engine}": PutEngine;
    "POST /api/people": NewPerson;
    "PUT /api/shares": ShareChange;
    "PATCH /api/settings": SettingsChange;
    "POST /api/import": Record<string, any>;
    "POST /api/clear": Clear;
    "POST /api/reindex": EmbedAnew | null;
    "POST /api/extra/lending/tokens": AskBytes;
    "POST /api/extra/lending/forget": ForgetLent;
    "POST /api/extra/tokencount": CountTokens;
    "POST /api/v1/generate": Generate;
    "POST /api/extra/generate/check": CheckText | null;
  }

  interface Answers {
    "GET /api/windows": WindowsTold;
    "POST /api/windows": WindowTold;
    "GET /api/windows/{window_id}": WindowTold;
    "PATCH /api/windows/{window_id}": WindowTold;
    "DELETE /api/windows/{window_id}": null;
    "POST /api/windows/{window_id}/prune": Pruned;
    "GET /api/windows/{window_id}/events": null;
    "GET /api/windows/{window_id}/context": ContextTold;
    "GET /api/windows/{window_id}/turns": SaidTold;
    "POST /api/windows/{window_id}/turns": Added;
    "GET /api/windows/{window_id}/turns/{turn_id}/use": ReplyUseTold;
    "GET /api/windows/{window_id}/graveyard": GraveyardTold;
    "GET /api/windows/{window_id}/deleted": DeletedPage;
    "GET /api/windows/{window_id}/gap": GapItems;
    "GET /api/windows/{window_id}/preview": PreviewTold;
    "GET /api/windows/{window_id}/life": LifeTold;
    "POST /api/windows/{window_id}/inject": Injected;
    "POST /api/windows/{window_id}/say": Saying;
    "POST /api/windows/{window_id}/answer": Saying;
    "POST /api/windows/{window_id}/continue": Saying;
    "POST /api/windows/{window_id}/edit": Edited;
    "POST /api/windows/{window_id}/switch": Switched;
    "POST /api/windows/{window_id}/rewind": Switched;
    "POST /api/windows/{window_id}/branch": WindowTold;
    "GET /api/windows/{window_id}/siblings": SiblingsTold;
    "POST /api/windows/{window_id}/abort": Stopped;
    "POST /api/windows/{window_id}/chunks/undelete": Undeleted;
    "POST /api/windows/{window_id}/chunks/{key}/wrong": null;
    "DELETE /api/windows/{window_id}/chunks/{key}/wrong": null;
    "PUT /api/windows/{window_id}/chunks/{key}/tags": ChunkTagsTold;
    "GET /api/tags": TagsTold;
    "POST /api/windows/{window_id}/chunks/{key}/{act}": Acted;
    "GET /api/windows/{window_id}/chunks/{key}/why": WhyTold;
    "GET /api/windows/{window_id}/chunks/{key}/delete": DeletionTold;
    "DELETE /api/windows/{window_id}/chunks/{key}": DeletionTold;
    "GET /api/tokens": TokensTold;
    "GET /api/search": SearchTold;
    "GET /api/persona": PersonaTold;
    "PATCH /api/persona": PersonaTold;
    "GET /api/presets": PresetsTold;
    "PUT /api/presets": PresetTold;
    "DELETE /api/presets": PresetTold;
    "POST /api/presets/rename": PresetTold;
    "POST /api/presets/apply": PresetTold;
    "POST /api/documents": DocumentTold;
    "GET /api/memory": BranchTold;
    "GET /api/memory/entry": EntryTold;
    "PUT /api/memory/entry": EntryTold;
    "DELETE /api/memory/entry": Forgotten;
    "GET /api/memory/history": VersionsTold;
    "GET /api/memory/query": MatchesTold;
    "GET /api/notes": NotesTold;
    "PUT /api/notes": NotesTold;
    "GET /api/windows/{window_id}/captures": Captures;
    "DELETE /api/windows/{window_id}/captures": null;
    "GET /api/windows/{window_id}/replay": ReplayTold;
    "GET /api/windows/{window_id}/compare": ComparisonTold;
    "GET /api/windows/{window_id}/digest": DigestTold;
    "GET /api/model": ModelTold;
    "POST /api/model": ModelTold;
    "GET /api/models": ModelsTold;
    "POST /api/model/stop": Stopped;
    "POST /api/model/retry": Status;
    "GET /api/engines": EnginesTold;
    "PUT /api/engines/{engine}": EnginesTold;
    "DELETE /api/engines/{engine}": EnginesTold;
    "GET /api/windows/{window_id}/engine": WhereTold;
    "GET /api/me": AskingTold;
    "GET /api/people": PeopleTold;
    "POST /api/people": KeyTold;
    "DELETE /api/people/{person}": PersonTold;
    "GET /api/shares": SharesTold;
    "PUT /api/shares": ShareTold;
    "DELETE /api/shares": null;
    "GET /api/status": Status;
    "GET /api/settings": SettingsTold;
    "PATCH /api/settings": SettingsTold;
    "GET /api/stats": StatsTold;
    "GET /api/export": Record<string, any> | any[];
    "GET /api/import": ImportState;
    "POST /api/import": Imported;
    "POST /api/clear": null;
    "GET /api/reindex": EmbeddingState;
    "POST /api/reindex": EmbeddingState;
    "POST /api/session": null;
    "DELETE /api/session": null;
    "GET /api/extra/lending": LentModel;
    "GET /props": Props;
    "POST /api/extra/lending/tokens": Bytes;
    "POST /api/extra/lending/forget": LentForgotten;
    "GET /api/v1/info/version": KoboldResult;
    "GET /api/extra/version": KoboldVersion;
    "GET /api/v1/config/max_context_length": KoboldValue;
    "GET /api/extra/true_max_context_length": KoboldValue;
    "GET /api/v1/config/max_length": KoboldValue;
    "POST /api/extra/tokencount": TokenCount;
    "POST /api/v1/generate": KoboldTexts;
    "POST /api/extra/generate/check": KoboldTexts;
    "GET /api/extra/perf": KoboldPerf;
  }

  interface Events {
    searching: SearchingEvent;
    woken: WokenEvent;
    asleep: AsleepEvent;
    heard: HeardEvent;
    answering: AnsweringEvent;
    to_read: ToReadEvent;
    reading: ReadingEvent;
    token: TokenEvent;
    brightened: BrightenedEvent;
    tool_called: ToolCalledEvent;
    call_made: CallMadeEvent;
    tool_answered: ToolAnsweredEvent;
    memory: MemoryEvent;
    spoken: SpokenEvent;
    unstored: UnstoredEvent;
    done: DoneEvent;
    failed: FailedEvent;
    model: ModelEvent;
    changed: ChangedEvent;
    deleted: DeletedEvent;
    reset: ResetEvent;
  }

  interface Acted {
    key: string;
    live: boolean;
    pinned: boolean;
    woken: string[];
    asleep: string[];
  }

  interface AddTurns {
    turns: SaidElsewhere[];
  }

  interface Added {
    turns: string[];
  }

  interface Answer {
    turn?: string | null;
  }

  interface AnsweringEvent {
    turn_id: string;
    reply_turn: string;
    opened: number;
  }

  interface ApplyPreset {
    name: string;
    window?: string | null;
  }

  interface AskBytes {
    text?: string | null;
    special?: boolean;
    ids?: number[] | null;
  }

  interface AskingTold {
    name: string;
    runs_it: boolean;
    several: boolean;
    may_add: boolean;
  }

  interface AsleepEvent {
    chunks: SleptChunk[];
    budget: number;
    over: number;
    before_turn: boolean;
  }

  interface Attached {
    name: string;
    text: string;
  }

  interface BranchOff {
    turn: string;
    name?: string | null;
  }

  interface BranchTold {
    heading: string;
    path: string;
    version: number | null;
    modified: string | null;
    children: BranchTold[];
    entries: number;
    content: any;
  }

  interface BrightenedEvent {
    attention: string;
    data: string;
  }

  interface Budget {
    max_context_tokens: number;
    model_context: number;
    system: number;
    pinned: number;
    live: number;
    frames: number;
    reserve: number;
    free: number;
  }

  interface Bytes {
    ids: number[];
    raw: string;
    ends: number[];
    controls: number[];
  }

  interface CallMadeEvent {
    name: string;
    arguments: Record<string, any>;
  }

  interface CaptureTold {
    name: string;
    model: string;
    heads: string;
    turns: number;
    megabytes: number;
  }

  interface Captures {
    captures: CaptureTold[];
  }

  interface ChangedEvent {
  }

  interface CheckText {
    genkey?: string | null | null;
  }

  interface ChooseModel {
    model: string;
  }

  interface ChunkShareTold {
    key: string;
    start: string;
    share: number;
  }

  interface ChunkTags {
    tags: string[];
  }

  interface ChunkTagsTold {
    key: string;
    tags: string[];
  }

  interface ChunkTold {
    key: string;
    start: string;
    pinned: boolean;
    tokens: number;
    text_pieces: string[];
    brightness: number[];
    rank: number | null;
    peak: number;
    mean: number;
    woken: Record<string, any> | null;
    tool: boolean;
    thought: boolean;
    gap: Gap | null;
    thoughts: number;
  }

  interface Clear {
    confirm: "delete everything";
  }

  interface ComparisonTold {
    strategies: Record<string, StrategyTold>;
    agreement: Record<string, number>;
    slept: Record<string, ReplayedSleep[]>;
    live: Record<string, number[]>;
  }

  interface ContextStats {
    asleep_chunks: number;
    asleep_tokens: number;
    woken_last_turn: number;
    kv_reuse: number | null;
    tokens_per_second: number | null;
    only_thought: boolean;
  }

  interface ContextTold {
    window: string;
    version: number;
    last_event: string;
    size: number;
    system_tokens: number;
    system_text: string;
    budget: Budget;
    brightness: RangeTold;
    turns: TurnTold[];
    tail_gap: Gap | null;
    generating: ReplyTold | null;
    unstored: string | null;
    stats: ContextStats;
  }

  interface CountTokens {
    prompt: string;
  }

  interface DeletedEvent {
  }

  interface DeletedPage {
    total: number;
    items: DeletedTold[];
  }

  interface DeletedTold {
    key: string;
    role: Role;
    turn_id: string;
    start: string;
    tokens: number;
    slept: string;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    text: string;
  }

  interface DeletionTold {
    keys: string[];
    turns: number;
    chunks: number;
    tokens: number;
    text: string | null;
  }

  interface Described {
    name: string;
    group: string;
    type: "integer" | "number" | "boolean" | "choice" | "text" | "day";
    default: boolean | number | string | null;
    low: number | null;
    high: number | null;
    choices: string[];
    optional: boolean;
    common: boolean;
    meaning: string;
    no_effect: Record<string, string>;
  }

  interface DigestTold {
    excerpts: ExcerptTold[];
  }

  interface DocumentTold {
    name: string;
    text: string;
    tokens: number;
  }

  interface DoneEvent {
    reason: "stop" | "eos" | "length" | "context" | "abort";
    budget: Budget;
    stats: TurnStats;
    ranks: Record<string, number>;
  }

  interface Edit {
    turn: string;
    text: string;
  }

  interface Edited {
    turn: string | null;
    saying: Saying | null;
  }

  interface EmbedAnew {
    embedder?: string | null;
  }

  interface EmbedderTold {
    state: "ready" | "loading" | "off";
    model: string;
    file: string;
    sentence: string;
    wanted: number;
  }

  interface EmbeddingState {
    state: "idle" | "running" | "off" | "failed";
    model: string;
    done: number;
    total: number;
    sentence: string;
  }

  interface EngineTold {
    name: string;
    kind: string;
    url: string;
    model_name: string;
    reader: string;
    has_key: boolean;
    configured: boolean;
    open: boolean;
    elsewhere: string;
    light: string;
  }

  interface EnginesTold {
    engines: EngineTold[];
    notice: string;
  }

  interface EntryTold {
    path: string;
    content: any;
    snapshot: KeptTold[];
    created: string;
    modified: string;
    accessed: string;
    version: number;
    ended: string | null;
  }

  interface ExcerptTold {
    key: string;
    text: string;
    speaker: string;
    said: string;
    share: number;
    replies: string[];
  }

  interface FailedEvent {
    sentence: string;
    elsewhere: boolean;
  }

  interface ForgetLent {
    window?: string | null;
    spans?: number[][];
    windows?: string[];
  }

  interface Forgotten {
    deleted: number;
  }

  interface Gap {
    chunks: number;
    tokens: number;
  }

  interface GapItems {
    total: number;
    items: SleepingTold[];
    tokens: number;
  }

  interface Generate {
    prompt?: string | null | null;
    input_ids?: number[] | null | null;
    max_length?: number | null;
    temperature?: number | null;
    top_p?: number | null;
    top_k?: number | null;
    min_p?: number | null;
    rep_pen?: number | null;
    sampler_seed?: number | null | null;
    stop_sequence?: string[] | null;
    output_attentions?: boolean | null;
    output_hidden_states?: boolean | null;
    attention_format?: "aggregated" | "per_layer" | null;
    request_id?: string | null | null;
    genkey?: string | null | null;
    memory?: string | null | null;
    trim_stop?: boolean | null;
    replace_instruct_placeholders?: boolean | null;
    halo?: LentRequest | null | null;
    max_context_length?: any | null;
    quiet?: any | null;
    sampler_order?: any | null;
  }

  interface Generation {
    id: number;
    model: string;
    dimension: number;
    state: "building" | "current" | "retired";
    created: string;
    completed: string | null;
    vectors: number;
    wanted: number;
  }

  interface GraveyardTold {
    total: number;
    items: SleepingTold[];
  }

  interface Happened {
    event: string;
    happened: string;
    window: string | null;
    window_name: string;
    detail: Record<string, any>;
  }

  interface HeardEvent {
    turn_id: string;
    reply_turn: string;
    said: string;
    speaker: string;
    frames: number;
    chunks: ChunkTold[];
  }

  interface HitTold {
    key: string;
    text: string;
    role: Role;
    speaker: string;
    said: string;
    window: string;
    window_name: string;
    similarity: number;
    parts: Record<string, number>;
    words: string[];
    part: "hit" | "question" | "answer" | "anchor";
    live: boolean;
    tokens: number;
    tags: string[];
  }

  interface ImportState {
    state: "idle" | "running";
    done: number;
    total: number;
  }

  interface Imported {
    turns: number;
    chunks: number;
    tokens: number;
    windows: number;
    entries: number;
    notes: number;
    known_turns: number;
    kept_ids: boolean;
    ids?: string;
    program?: string;
    left?: Record<string, number>;
  }

  interface Inject {
    path: string;
  }

  interface Injected {
    keys: string[];
    cost: number;
    asleep: string[];
  }

  interface Keep {
    path: string;
    content: any;
    context_tokens?: number;
  }

  interface KeptTold {
    key: string | null;
    text: string;
    tokens: number;
    similarity: number;
    said: string | null;
  }

  interface KeyTold {
    name: string;
    key: string;
  }

  interface KoboldPerf {
    last_process: number;
    last_eval: number;
    last_token_count: number;
    stop_reason: number;
    total_gens: number;
    queue: number;
    idle: number;
    uptime: number;
  }

  interface KoboldResult {
    result: string;
  }

  interface KoboldText {
    text: string;
    finish_reason: string | null;
  }

  interface KoboldTexts {
    results: KoboldText[];
  }

  interface KoboldValue {
    value: number;
  }

  interface KoboldVersion {
    result: "KoboldCpp";
    version: string;
    protected: boolean;
    txt2img: boolean;
    vision: boolean;
    halo_weave: string;
  }

  interface LentForgotten {
    done: true;
  }

  interface LentModel {
    tokenizer: string;
    chat_template: string;
    template_words: Record<string, string>;
    adds_bos: boolean;
    parameters: number;
    wide_layers: number[];
    abilities: Record<string, boolean>;
    heads: Record<string, number>[];
    light: string;
  }

  interface LentRequest {
    window: string;
    tokenizer: string;
    labels: number[];
    next_label: number;
    read_from?: number | null;
    splice?: boolean;
    heads?: number[][] | null;
    mean?: boolean;
    reply?: boolean;
    reading?: boolean;
    surprisal?: boolean;
    grammar?: string;
  }

  interface LifeEventTold {
    step: number;
    chunk: number;
    event: "slept" | "woke" | "pinned" | "unpinned";
    why: string;
  }

  interface LifeTold {
    turns: string[];
    keys: string[];
    tokens: number[];
    foreign: number[];
    live: number[];
    pinned: number[];
    events: LifeEventTold[];
  }

  interface ListedModelTold {
    name: string;
    title: string;
    kind: "chat" | "text" | "embedder" | null;
    size: number;
    needs: number | null;
    fits: boolean | null;
    where: string;
    source: string;
    path: string | null;
    license: string;
    problem: string;
    note: string;
    in_use: boolean;
  }

  interface MatchTold {
    entry: EntryTold;
    score: number;
    similarity: number;
    recency: number;
    relevant: KeptTold[];
  }

  interface MatchesTold {
    matches: MatchTold[];
  }

  interface MemoryEvent {
    change: "saved" | "forgotten";
    path: string;
    content: any;
  }

  interface MemoryTold {
    chunks: number;
    tokens: number;
    windows: number;
    deleted: number;
    bytes: number;
    place: string;
  }

  interface ModelChange {
    model: string;
    state: "loading" | "done" | "failed" | "stopped" | "calibrating" | "calibrated";
    sentence: string;
    progress: number | null;
  }

  interface ModelEvent {
    model: string;
    state: "loading" | "done" | "failed" | "stopped" | "calibrating" | "calibrated";
    sentence: string;
    progress: number | null;
  }

  interface ModelTold {
    state: "ready" | "loading" | "missing";
    sentence: string;
    progress: number | null;
    name: string;
    architecture: string;
    layers: number;
    heads: number;
    kv_heads: number;
    vocabulary: number;
    trained_context: number;
    context: number;
    template: string;
    template_note: string;
    kv: string;
    file: string;
    size_bytes: number;
    parameters: number;
    elsewhere: string;
    light: string;
    note: string;
    thinks: boolean;
    efforts: string[];
    native_tools: boolean;
    change: ModelChange | null;
  }

  interface ModelsTold {
    memory: number;
    default: string;
    models: ListedModelTold[];
    recommended: string[];
    embedders: Record<string, string>;
    any_path: boolean;
  }

  interface NewPerson {
    name: string;
  }

  interface NewWindow {
    system_prompt?: string | null;
    user_name?: string | null;
    ai_name?: string | null;
    tags?: string[] | null;
    settings?: OwnSettings | null;
    name: string;
  }

  interface NotesTold {
    content: Record<string, any>;
    version: string;
  }

  interface OneTurn {
    turn: string;
  }

  interface OwnSettings {
    temperature?: number | null;
    top_p?: number | null;
    top_k?: number | null;
    min_p?: number | null;
    repeat_penalty?: number | null;
    seed?: number | null;
    max_new_tokens?: number | null;
    stop?: string | null;
    effort?: "off" | "low" | "high" | null;
    max_context_tokens?: number | null;
    prune_to?: number | null;
    min_chunk_tokens?: number | null;
    max_chunk_tokens?: number | null;
    strategy?: "confident_voting" | "cumulative" | "first_in_first_out" | "magnitude_voting" | "rolling_mean_voting" |
      "surprise" | "symmetric_voting" | "use_and_surprise" | null;
    initial_brightness?: number | null;
    brightness_cap?: number | null;
    fading?: number | null;
    fading_share?: number | null;
    adds_up?: "mean" | "max" | null;
    decay?: number | null;
    sink?: "max" | "first" | null;
    asking_sinks?: number | null;
    pairs_asleep?: "apart" | "brighter" | "dimmer" | null;
    keep_exchanges?: number | null;
    keep_used?: boolean | null;
    score_current_turn?: boolean | null;
    resurrection_budget?: number | null;
    resurrection_brightness?: "earned" | "hybrid" | "fresh" | null;
    pairs?: "ranked" | "with" | "off" | null;
    user_weight?: number | null;
    relevance_floor?: number | null;
    mmr_lambda?: number | null;
    memory_scope?: "all" | "tags" | "window" | null;
    recall_tags?: string | null;
    recall_role?: "user" | "assistant" | null;
    recall_since?: string | null;
    recall_before?: string | null;
    recall_thoughts?: boolean | null;
    kv_mode?: "splice" | "exact" | null;
    read_ahead?: "off" | "frames" | "load" | "compute" | null;
    timestamps?: boolean | null;
    memory_tree_in_prompt?: boolean | null;
    memory_decay_days?: number | null;
    tools?: "auto" | "native" | "tags" | "off" | null;
    tool_rounds?: number | null;
    answered_by?: string | null;
    may_leave?: "all" | "window" | "not_private" | null;
    private?: boolean | null;
    document_megabytes?: number | null;
    document_tokens?: number | null;
    document_seconds?: number | null;
    capture?: "off" | "mean" | "retrieval" | "all" | null;
    capture_megabytes?: number | null;
  }

  interface PeopleTold {
    people: PersonTold[];
  }

  interface PersonTold {
    name: string;
    created: string;
    revoked: string | null;
  }

  interface PersonaChange {
    system_prompt?: string | null;
    user_name?: string | null;
    ai_name?: string | null;
  }

  interface PersonaTold {
    system_prompt: string;
    user_name: string;
    ai_name: string;
  }

  interface PresetTold {
    name: string;
    settings: Record<string, boolean | number | string | null>;
    words: Record<string, string>;
  }

  interface PresetsTold {
    presets: PresetTold[];
  }

  interface PreviewTold {
    tokens: number;
    room: number;
    cost: number;
    wakes: WakingTold[];
    passed_over: number;
    over: WakingTold[];
    near: WakingTold[];
    sleeps: number;
  }

  interface Props {
    chat_template: string;
    bos_token: string;
    eos_token: string;
  }

  interface Pruned {
    chunks: SleptTold[];
    budget: number;
    over: number;
  }

  interface PutEngine {
    kind: "kobold" | "openai" | "llama";
    url?: string;
    model_name?: string;
    reader?: string;
    key?: string;
  }

  interface RangeTold {
    low: number;
    high: number;
    mean: number;
  }

  interface ReadingEvent {
    reused: number;
    restored: number;
    computed: number;
    seconds: number;
    rebuilt: string;
  }

  interface RememberedTold {
    key: string;
    start: string;
    tokens: number;
    text: string;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    share: number | null;
    woken: Record<string, any> | null;
  }

  interface RenamePreset {
    name: string;
    to: string;
  }

  interface ReplaceNotes {
    content: Record<string, any>;
    version?: string | null;
  }

  interface ReplayTold {
    turns: ReplayedTurn[];
  }

  interface ReplayedSleep {
    turn: number;
    key: string;
    brightness: number;
    age: number;
    why: string;
    text: string;
  }

  interface ReplayedTurn {
    turn: string;
    brightness: Record<string, number>;
    slept: string[];
    woken: string[];
  }

  interface ReplyTold {
    turn_id: string;
    position: string;
    text_pieces: string[];
    brightness: number[];
    tool: boolean[];
    thought: boolean[];
  }

  interface ReplyUseTold {
    start: string;
    use: UseTold | null;
  }

  interface ResetEvent {
  }

  type Role = "system" | "user" | "assistant";

  interface SaidChunkTold {
    key: string;
    start: string;
    tokens: number;
    text_pieces: string[];
    tool: boolean;
    thought: boolean;
  }

  interface SaidElsewhere {
    role: "user" | "assistant";
    text: string;
  }

  interface SaidTold {
    total: number;
    offset: number;
    turns: SaidTurnTold[];
  }

  interface SaidTurnTold {
    turn_id: string;
    role: Role;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    cut: boolean;
    unfinished: boolean;
    siblings: number;
    sibling: number;
    document: boolean;
    remembered: RememberedTold[] | null;
    chunks: SaidChunkTold[];
  }

  interface SavePreset {
    name: string;
    window?: string | null;
    settings?: OwnSettings | null;
    words?: PersonaChange | null;
  }

  interface Say {
    text: string;
    after?: string | null;
    wish?: Wish | null;
    documents?: Attached[];
  }

  interface Saying {
    turn: string;
    reply_turn: string;
    last_event: string;
    stream: string;
  }

  interface SearchTold {
    hits: HitTold[];
    cost: number | null;
  }

  interface SearchingEvent {
    room: number;
  }

  interface SettingsChange {
    reset?: ("temperature" | "top_p" | "top_k" | "min_p" | "repeat_penalty" | "seed" | "max_new_tokens" | "stop" |
      "effort" | "max_context_tokens" | "prune_to" | "min_chunk_tokens" | "max_chunk_tokens" | "strategy" |
      "initial_brightness" | "brightness_cap" | "fading" | "fading_share" | "adds_up" | "decay" | "sink" |
      "asking_sinks" | "pairs_asleep" | "keep_exchanges" | "keep_used" | "score_current_turn" | "resurrection_budget"
      | "resurrection_brightness" | "pairs" | "user_weight" | "relevance_floor" | "mmr_lambda" | "memory_scope" |
      "recall_tags" | "recall_role" | "recall_since" | "recall_before" | "recall_thoughts" | "kv_mode" | "read_ahead"
      | "timestamps" | "memory_tree_in_prompt" | "memory_decay_days" | "tools" | "tool_rounds" | "answered_by" |
      "may_leave" | "private" | "document_megabytes" | "document_tokens" | "document_seconds" | "capture" |
      "capture_megabytes")[];
    temperature?: number;
    top_p?: number;
    top_k?: number;
    min_p?: number;
    repeat_penalty?: number;
    seed?: number | null;
    max_new_tokens?: number;
    stop?: string;
    effort?: "off" | "low" | "high" | null;
    max_context_tokens?: number | null;
    prune_to?: number | null;
    min_chunk_tokens?: number;
    max_chunk_tokens?: number;
    strategy?: "confident_voting" | "cumulative" | "first_in_first_out" | "magnitude_voting" | "rolling_mean_voting" |
      "surprise" | "symmetric_voting" | "use_and_surprise";
    initial_brightness?: number;
    brightness_cap?: number;
    fading?: number;
    fading_share?: number;
    adds_up?: "mean" | "max";
    decay?: number;
    sink?: "max" | "first";
    asking_sinks?: number;
    pairs_asleep?: "apart" | "brighter" | "dimmer" | null;
    keep_exchanges?: number;
    keep_used?: boolean;
    score_current_turn?: boolean;
    resurrection_budget?: number | null;
    resurrection_brightness?: "earned" | "hybrid" | "fresh";
    pairs?: "ranked" | "with" | "off";
    user_weight?: number;
    relevance_floor?: number;
    mmr_lambda?: number | null;
    memory_scope?: "all" | "tags" | "window";
    recall_tags?: string;
    recall_role?: "user" | "assistant" | null;
    recall_since?: string | null;
    recall_before?: string | null;
    recall_thoughts?: boolean;
    kv_mode?: "splice" | "exact";
    read_ahead?: "off" | "frames" | "load" | "compute";
    timestamps?: boolean;
    memory_tree_in_prompt?: boolean;
    memory_decay_days?: number;
    tools?: "auto" | "native" | "tags" | "off";
    tool_rounds?: number;
    answered_by?: string;
    may_leave?: "all" | "window" | "not_private" | null;
    private?: boolean;
    document_megabytes?: number;
    document_tokens?: number;
    document_seconds?: number;
    capture?: "off" | "mean" | "retrieval" | "all";
    capture_megabytes?: number;
  }

  interface SettingsTold {
    described: Described[];
    values: Record<string, boolean | number | string | null>;
    auto: Record<string, number>;
  }

  interface ShareChange {
    window?: string;
    person: string;
    writes?: boolean;
  }

  interface ShareTold {
    owner: string;
    window: string;
    window_name: string;
    person: string;
    writes: boolean;
    made: string;
  }

  interface SharesTold {
    shares: ShareTold[];
  }

  interface SiblingTold {
    turn_id: string;
    role: Role;
    speaker: string;
    said: string;
    current: boolean;
    text: string;
  }

  interface SiblingsTold {
    siblings: SiblingTold[];
  }

  type SleepReason = "dimmest" | "oldest of the dimmest" | "with its pair" | "by the user" | "stays on this machine" |
      "no room" | "turn over";

  interface SleepingTold {
    key: string;
    role: Role;
    turn_id: string;
    start: string;
    tokens: number;
    peak: number;
    slept: string;
    reason: Record<string, any>;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    text: string;
  }

  interface SleptChunk {
    key: string;
    tokens: number;
    brightness: number;
    why: SleepReason;
  }

  interface SleptTold {
    key: string;
    tokens: number;
    brightness: number;
    why: string;
  }

  interface SpokenEvent {
    turn_id: string;
    said: string;
    speaker: string;
    chunks: ChunkTold[];
    use: UseTold | null;
    remembered: RememberedTold[] | null;
    unfinished: boolean;
  }

  interface StatsTold {
    id: string;
    created: string;
    next_turn: string;
    next_position: string;
    turns: number;
    chunks: number;
    tokens: number;
    deleted_chunks: number;
    windows: number;
    drafts: number;
    entries: number;
    notes: number;
    generations: Generation[];
    schema_version: number;
    bytes: number;
    clients: number;
  }

  interface Status {
    version: string;
    model: ModelTold;
    embedder: EmbedderTold;
    memory: MemoryTold;
    generating: string[];
  }

  interface Stopped {
    stopped: boolean;
  }

  interface StrategyTold {
    turns: number;
    asleep: number;
    woken: number;
    woken_tokens: number;
    live: number;
    median_age: number | null;
    rows: number;
    rows_per_second: number | null;
  }

  interface Switched {
    turn: string;
  }

  interface TagTold {
    tag: string;
    windows: number;
    chunks: number;
  }

  interface TagsTold {
    tags: TagTold[];
  }

  interface ToReadEvent {
    reused: number;
    restored: number;
    computed: number;
  }

  interface TokenCount {
    value: number;
    ids: number[];
  }

  interface TokenEvent {
    id: number;
    position: string;
    text: string;
    tool: boolean;
    thought: boolean;
  }

  interface TokenSourceTold {
    place: number;
    offset: number;
    share: number;
  }

  interface TokenTold {
    position: string;
    id: number;
    text: string;
    key: string;
  }

  interface TokensTold {
    tokens: TokenTold[];
  }

  interface ToolAnsweredEvent {
    text: string;
    ok: boolean;
  }

  interface ToolCalledEvent {
    command: string;
  }

  interface TurnStats {
    tokens: number;
    woken: number;
    asleep: number;
    reused: number;
    restored: number;
    computed: number;
    seconds: number;
    tokens_per_second: number;
    own_ms_per_turn: number;
    recall_ms: number;
    own_ms_after: number;
    own_ms_per_token: number;
    thought_tokens: number;
    only_thought: boolean;
    nothing_added: boolean;
    faults: number;
    prompted: number;
    cached: number;
  }

  interface TurnTold {
    turn_id: string;
    role: Role;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    cut: boolean;
    unfinished: boolean;
    siblings: number;
    sibling: number;
    document: boolean;
    remembered: RememberedTold[] | null;
    chunks: ChunkTold[];
  }

  interface Undelete {
    keys: string[];
  }

  interface Undeleted {
    keys: string[];
  }

  interface UnstoredEvent {
    sentence: string;
  }

  interface UseTold {
    chunks: ChunkShareTold[];
    nothing: number;
    tokens: TokenSourceTold[][];
  }

  interface UsedIn {
    turn_id: string;
    said: string;
    window: string;
    window_name: string;
    share: number;
  }

  interface VersionsTold {
    versions: EntryTold[];
  }

  type WakeReason = "hit" | "question" | "answer" | "anchor";

  interface WakingTold {
    key: string;
    part: "hit" | "question" | "answer" | "anchor";
    hit: string;
    similarity: number;
    cost: number;
    words: string[];
    parts: Record<string, number>;
    text: string;
  }

  interface WhereTold {
    name: string;
    known: boolean;
    model: string;
    elsewhere: string;
    rule: "all" | "window" | "not_private";
    private: boolean;
    light: string;
    malformed: number;
  }

  interface WhyTold {
    key: string;
    text: string;
    tokens: number;
    live: boolean;
    pinned: boolean;
    rank: number | null;
    peak: number | null;
    mean: number | null;
    parts: Record<string, number>;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    history: Happened[];
    uses: UsedIn[];
    use: UseTold | null;
    woken: number;
    tags: string[];
  }

  interface WindowChange {
    system_prompt?: string | null;
    user_name?: string | null;
    ai_name?: string | null;
    tags?: string[] | null;
    settings?: OwnSettings | null;
    name?: string | null;
    pinned?: boolean | null;
    archived?: boolean | null;
    inherits?: ("system_prompt" | "user_name" | "ai_name")[];
    reset?: ("temperature" | "top_p" | "top_k" | "min_p" | "repeat_penalty" | "seed" | "max_new_tokens" | "stop" |
      "effort" | "max_context_tokens" | "prune_to" | "min_chunk_tokens" | "max_chunk_tokens" | "strategy" |
      "initial_brightness" | "brightness_cap" | "fading" | "fading_share" | "adds_up" | "decay" | "sink" |
      "asking_sinks" | "pairs_asleep" | "keep_exchanges" | "keep_used" | "score_current_turn" | "resurrection_budget"
      | "resurrection_brightness" | "pairs" | "user_weight" | "relevance_floor" | "mmr_lambda" | "memory_scope" |
      "recall_tags" | "recall_role" | "recall_since" | "recall_before" | "recall_thoughts" | "kv_mode" | "read_ahead"
      | "timestamps" | "memory_tree_in_prompt" | "memory_decay_days" | "tools" | "tool_rounds" | "answered_by" |
      "may_leave" | "private" | "document_megabytes" | "document_tokens" | "document_seconds" | "capture" |
      "capture_megabytes")[];
  }

  interface WindowTold {
    id: string;
    name: string;
    system_prompt: string;
    user_name: string;
    ai_name: string;
    inherits: string[];
    owner: string;
    writable: boolean;
    tags: string[];
    pinned: boolean;
    archived: boolean;
    settings: Record<string, boolean | number | string | null>;
    effective: Record<string, boolean | number | string | null>;
    created: string;
    modified: string;
    last_text: string;
    live_chunks: number;
    live_tokens: number;
    asleep_chunks: number;
    generating: boolean;
  }

  interface WindowsTold {
    windows: WindowTold[];
  }

  interface Wish {
    without?: string[];
    also?: string[];
    room?: boolean;
  }

  interface WokenChunk {
    key: string;
    start: string;
    pinned: boolean;
    tokens: number;
    text_pieces: string[];
    brightness: number[];
    rank: number | null;
    peak: number;
    mean: number;
    woken: Record<string, any> | null;
    tool: boolean;
    thought: boolean;
    gap: Gap | null;
    thoughts: number;
    part: WakeReason;
    hit: string;
    similarity: number;
    cost: number;
    words: string[];
    parts: Record<string, number>;
    window: string;
    window_name: string;
    speaker: string;
    said: string;
    slept: boolean;
    document: boolean;
  }

  interface WokenEvent {
    chunks: WokenChunk[];
    cost: number;
    room: number;
    passed_over: number;
  }

  interface Wrong {
    question: string;
  }
}
