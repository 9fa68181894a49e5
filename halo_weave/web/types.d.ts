// Made by scripts/types from the description of the API; a test says when it has to be made again.
// Read by the type checker only: the browser never loads it.

declare namespace Wire {
  interface Bodies {
    "POST /api/windows": NewWindow;
    "PATCH /api/windows/{window_id}": WindowChange;
    "POST /api/windows/{window_id}/turns": AddTurns;
    "POST /api/windows/{window_id}/inject": InjectMemoryEntry;
    "POST /api/windows/{window_id}/messages": NewMessage;
    "POST /api/windows/{window_id}/regenerate": Regenerate;
    "POST /api/windows/{window_id}/edit": EditTurn;
    "POST /api/windows/{window_id}/checkout": TurnReference;
    "POST /api/windows/{window_id}/rewind": TurnReference;
    "POST /api/windows/{window_id}/branch": CreateBranch;
    "POST /api/windows/{window_id}/chunks/restore": RestoreChunks;
    "POST /api/windows/{window_id}/chunks/{key}/negative-feedback": NegativeFeedback;
    "PUT /api/windows/{window_id}/chunks/{key}/tags": ChunkTags;
    "PATCH /api/persona": PersonaChange;
    "PUT /api/presets": SavePreset;
    "POST /api/presets/rename": RenamePreset;
    "POST /api/presets/apply": ApplyPreset;
    "PUT /api/memory/entry": SaveMemoryEntry;
    "PUT /api/notes": ReplaceNotes;
    "POST /api/model": ChooseModel;
    "PUT /api/engines/{engine}": EngineDefinition;
    "POST /api/people": NewPerson;
    "PUT /api/shares": ShareChange;
    "PATCH /api/settings": SettingsChange;
    "POST /api/import": Record<string, any>;
    "POST /api/clear": ClearMemory;
    "POST /api/reindex": Reindex | null;
    "POST /api/remote-kv/tokens": TokenBytesRequest;
    "POST /api/remote-kv/forget": RemoteKvForget;
    "POST /api/extra/tokencount": CountTokens;
    "POST /api/v1/generate": Generate;
    "POST /api/extra/generate/check": CheckText | null;
  }

  interface Answers {
    "GET /api/windows": Windows;
    "POST /api/windows": Window;
    "GET /api/windows/{window_id}": Window;
    "PATCH /api/windows/{window_id}": Window;
    "DELETE /api/windows/{window_id}": null;
    "POST /api/windows/{window_id}/prune": PruneResult;
    "GET /api/windows/{window_id}/events": null;
    "GET /api/windows/{window_id}/context": WindowContext;
    "GET /api/windows/{window_id}/turns": Transcript;
    "POST /api/windows/{window_id}/turns": AddedTurns;
    "GET /api/windows/{window_id}/turns/{turn_id}/sources": ReplySources;
    "GET /api/windows/{window_id}/graveyard": Graveyard;
    "GET /api/windows/{window_id}/deleted": DeletedChunks;
    "GET /api/windows/{window_id}/pruned": PrunedBetween;
    "GET /api/windows/{window_id}/recall-preview": RecallPreview;
    "GET /api/windows/{window_id}/timeline": WindowTimeline;
    "POST /api/windows/{window_id}/inject": InjectionResult;
    "POST /api/windows/{window_id}/messages": MessageAccepted;
    "POST /api/windows/{window_id}/regenerate": MessageAccepted;
    "POST /api/windows/{window_id}/continue": MessageAccepted;
    "POST /api/windows/{window_id}/edit": EditedTurn;
    "POST /api/windows/{window_id}/checkout": CheckedOutTurn;
    "POST /api/windows/{window_id}/rewind": CheckedOutTurn;
    "POST /api/windows/{window_id}/branch": Window;
    "GET /api/windows/{window_id}/turns/{turn_id}/versions": TurnVersions;
    "POST /api/windows/{window_id}/stop": StopResult;
    "POST /api/windows/{window_id}/chunks/restore": RestoredChunks;
    "POST /api/windows/{window_id}/chunks/{key}/negative-feedback": null;
    "DELETE /api/windows/{window_id}/chunks/{key}/negative-feedback": null;
    "PUT /api/windows/{window_id}/chunks/{key}/tags": ChunkTagsView;
    "GET /api/tags": TagCounts;
    "POST /api/windows/{window_id}/chunks/{key}/{act}": ChunkActionResult;
    "GET /api/windows/{window_id}/chunks/{key}/explanation": ChunkExplanation;
    "GET /api/windows/{window_id}/chunks/{key}/deletion": Deletion;
    "DELETE /api/windows/{window_id}/chunks/{key}": Deletion;
    "GET /api/tokens": Tokens;
    "GET /api/search": SearchResults;
    "GET /api/persona": Persona;
    "PATCH /api/persona": Persona;
    "GET /api/presets": Presets;
    "PUT /api/presets": PresetView;
    "DELETE /api/presets": PresetView;
    "POST /api/presets/rename": PresetView;
    "POST /api/presets/apply": PresetView;
    "POST /api/documents": ExtractedDocument;
    "GET /api/memory": MemoryTreeNode;
    "GET /api/memory/entry": MemoryEntry;
    "PUT /api/memory/entry": MemoryEntry;
    "DELETE /api/memory/entry": DeletedEntries;
    "GET /api/memory/history": MemoryEntryVersions;
    "GET /api/memory/query": MemoryMatches;
    "GET /api/notes": Notes;
    "PUT /api/notes": Notes;
    "GET /api/windows/{window_id}/captures": Captures;
    "DELETE /api/windows/{window_id}/captures": null;
    "GET /api/windows/{window_id}/replay": Replay;
    "GET /api/windows/{window_id}/compare": StrategyComparison;
    "GET /api/windows/{window_id}/digest": Digest;
    "GET /api/model": ModelView;
    "POST /api/model": ModelView;
    "GET /api/models": AvailableModels;
    "POST /api/model/stop": StopResult;
    "POST /api/model/retry": Status;
    "GET /api/engines": Engines;
    "PUT /api/engines/{engine}": Engines;
    "DELETE /api/engines/{engine}": Engines;
    "GET /api/windows/{window_id}/engine": WindowEngineView;
    "GET /api/me": CurrentUser;
    "GET /api/people": People;
    "POST /api/people": NewKey;
    "DELETE /api/people/{person}": PersonView;
    "GET /api/shares": Shares;
    "PUT /api/shares": ShareView;
    "DELETE /api/shares": null;
    "GET /api/status": Status;
    "GET /api/settings": SettingsView;
    "PATCH /api/settings": SettingsView;
    "GET /api/stats": MemoryStats;
    "GET /api/export": Record<string, any> | any[];
    "GET /api/import": ImportState;
    "POST /api/import": ImportResult;
    "POST /api/clear": null;
    "GET /api/reindex": EmbeddingState;
    "POST /api/reindex": EmbeddingState;
    "POST /api/session": null;
    "DELETE /api/session": null;
    "GET /api/remote-kv": RemoteKvModel;
    "GET /props": ModelProps;
    "POST /api/remote-kv/tokens": TokenBytes;
    "POST /api/remote-kv/forget": RemoteKvForgotten;
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
    resurrected: ResurrectedEvent;
    pruned: PrunedEvent;
    message_stored: MessageStoredEvent;
    regenerating: RegeneratingEvent;
    prefill_planned: PrefillPlannedEvent;
    prefill: PrefillEvent;
    token: TokenEvent;
    brightness: BrightnessEvent;
    tool_called: ToolCalledEvent;
    client_tool_called: ClientToolCalledEvent;
    tool_answered: ToolAnsweredEvent;
    memory_changed: MemoryChangedEvent;
    reply_stored: ReplyStoredEvent;
    reply_not_stored: ReplyNotStoredEvent;
    done: DoneEvent;
    failed: FailedEvent;
    model: ModelEvent;
    changed: ChangedEvent;
    deleted: DeletedEvent;
    reset: ResetEvent;
  }

  interface AddTurns {
    turns: ExternalTurn[];
  }

  interface AddedTurns {
    turns: string[];
  }

  interface ApplyPreset {
    name: string;
    window?: string | null;
  }

  interface AttachedDocument {
    name: string;
    text: string;
  }

  interface AttributionView {
    chunks: ChunkShare[];
    nothing: number;
    tokens: TokenSource[][];
  }

  interface AvailableModel {
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

  interface AvailableModels {
    memory: number;
    default: string;
    models: AvailableModel[];
    recommended: string[];
    embedders: Record<string, string>;
    any_path: boolean;
  }

  interface BrightnessEvent {
    brightness: string;
    attention: string;
  }

  interface BrightnessRange {
    low: number;
    high: number;
    mean: number;
  }

  interface CaptureView {
    name: string;
    model: string;
    heads: string;
    turns: number;
    megabytes: number;
  }

  interface Captures {
    captures: CaptureView[];
  }

  interface ChangedEvent {
  }

  interface CheckText {
    genkey?: string | null | null;
  }

  interface CheckedOutTurn {
    turn_id: string;
  }

  interface ChooseModel {
    model: string;
  }

  interface ChunkActionResult {
    key: string;
    live: boolean;
    pinned: boolean;
    resurrected: string[];
    pruned: string[];
  }

  interface ChunkExplanation {
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
    history: ChunkHistoryEvent[];
    used_by: UsedByReply[];
    attribution: AttributionView | null;
    resurrections: number;
    tags: string[];
  }

  interface ChunkHistoryEvent {
    event: string;
    happened: string;
    window: string | null;
    window_name: string;
    detail: Record<string, any>;
  }

  interface ChunkShare {
    key: string;
    start: string;
    share: number;
  }

  interface ChunkTags {
    tags: string[];
  }

  interface ChunkTagsView {
    key: string;
    tags: string[];
  }

  interface ClearMemory {
    confirm: "delete everything";
  }

  interface ClientToolCalledEvent {
    name: string;
    arguments: Record<string, any>;
  }

  interface ContextStats {
    pruned_chunks: number;
    pruned_tokens: number;
    resurrected_last_turn: number;
    kv_reuse: number | null;
    tokens_per_second: number | null;
    only_thought: boolean;
  }

  interface CountTokens {
    prompt: string;
  }

  interface CreateBranch {
    turn_id: string;
    name?: string | null;
  }

  interface CurrentUser {
    name: string;
    is_owner: boolean;
    multiple_people: boolean;
    can_add_people: boolean;
  }

  interface DeletedChunk {
    key: string;
    role: Role;
    turn_id: string;
    start: string;
    tokens: number;
    deleted: string;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    text: string;
  }

  interface DeletedChunks {
    total: number;
    items: DeletedChunk[];
  }

  interface DeletedEntries {
    deleted: number;
  }

  interface DeletedEvent {
  }

  interface Deletion {
    keys: string[];
    turns: number;
    chunks: number;
    tokens: number;
    text: string | null;
  }

  interface Digest {
    excerpts: DigestExcerpt[];
  }

  interface DigestExcerpt {
    key: string;
    text: string;
    speaker: string;
    said: string;
    share: number;
    replies: string[];
  }

  interface DoneEvent {
    reason: "stop" | "eos" | "length" | "context" | "abort";
    budget: TokenBudget;
    stats: TurnStats;
    ranks: Record<string, number>;
  }

  interface EditTurn {
    turn_id: string;
    text: string;
  }

  interface EditedTurn {
    turn_id: string | null;
    accepted: MessageAccepted | null;
  }

  interface EmbedderView {
    state: "ready" | "loading" | "off";
    model: string;
    file: string;
    message: string;
    pending: number;
  }

  interface EmbeddingState {
    state: "idle" | "running" | "off" | "failed";
    model: string;
    done: number;
    total: number;
    message: string;
  }

  interface EngineDefinition {
    kind: "kobold" | "openai" | "llama";
    url?: string;
    model_name?: string;
    shadow_model?: string;
    key?: string;
  }

  interface EngineView {
    name: string;
    kind: string;
    url: string;
    model_name: string;
    shadow_model: string;
    has_key: boolean;
    configured: boolean;
    open: boolean;
    remote_host: string;
    attention_source: string;
  }

  interface Engines {
    engines: EngineView[];
    notice: string;
  }

  interface ExternalTurn {
    role: "user" | "assistant";
    text: string;
  }

  interface ExtractedDocument {
    name: string;
    text: string;
    tokens: number;
  }

  interface FailedEvent {
    message: string;
    remote: boolean;
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
    remote_kv?: RemoteKvRequest | null | null;
    max_context_length?: any | null;
    quiet?: any | null;
    sampler_order?: any | null;
  }

  interface Graveyard {
    total: number;
    items: GraveyardItem[];
  }

  interface GraveyardItem {
    key: string;
    role: Role;
    turn_id: string;
    start: string;
    tokens: number;
    peak: number;
    pruned: string;
    reason: Record<string, any>;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    text: string;
  }

  interface IdleReadingView {
    state: "off" | "unavailable" | "waiting" | "reading" | "on battery" | "disk full" | "done";
    done: number;
    total: number;
  }

  interface ImportResult {
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

  interface ImportState {
    state: "idle" | "running";
    done: number;
    total: number;
  }

  interface InjectMemoryEntry {
    path: string;
  }

  interface InjectionResult {
    resurrected: string[];
    cost: number;
    pruned: string[];
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

  interface LiveChunk {
    key: string;
    start: string;
    pinned: boolean;
    tokens: number;
    text_pieces: string[];
    brightness: number[];
    rank: number | null;
    peak: number;
    mean: number;
    resurrected: Record<string, any> | null;
    tool: boolean;
    thought: boolean;
    pruned_before: PrunedGap | null;
    pruned_thoughts: number;
  }

  interface LiveTurn {
    turn_id: string;
    role: Role;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    interrupted: boolean;
    unfinished: boolean;
    versions: number;
    version: number;
    document: boolean;
    sources: ReplySource[] | null;
    chunks: LiveChunk[];
  }

  interface MemoryChangedEvent {
    change: "saved" | "forgotten";
    path: string;
    content: any;
    moved_from: string;
  }

  interface MemoryEntry {
    path: string;
    content: any;
    snapshot: SnapshotChunk[];
    created: string;
    modified: string;
    accessed: string;
    version: number;
    ended: string | null;
  }

  interface MemoryEntryVersions {
    versions: MemoryEntry[];
  }

  interface MemoryMatch {
    entry: MemoryEntry;
    score: number;
    similarity: number;
    recency: number;
    relevant: SnapshotChunk[];
  }

  interface MemoryMatches {
    matches: MemoryMatch[];
  }

  interface MemoryStats {
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
    generations: VectorGeneration[];
    schema_version: number;
    bytes: number;
    clients: number;
  }

  interface MemoryTreeNode {
    heading: string;
    path: string;
    version: number | null;
    modified: string | null;
    children: MemoryTreeNode[];
    entries: number;
    content: any;
  }

  interface MemoryView {
    chunks: number;
    tokens: number;
    windows: number;
    deleted: number;
    bytes: number;
    location: string;
  }

  interface MessageAccepted {
    turn_id: string;
    reply_turn_id: string;
    last_event: string;
    stream: string;
  }

  interface MessageStoredEvent {
    turn_id: string;
    reply_turn_id: string;
    said: string;
    speaker: string;
    frames: number;
    chunks: LiveChunk[];
  }

  interface ModelChange {
    model: string;
    state: "loading" | "done" | "failed" | "stopped" | "calibrating" | "calibrated";
    message: string;
    progress: number | null;
  }

  interface ModelEvent {
    model: string;
    state: "loading" | "done" | "failed" | "stopped" | "calibrating" | "calibrated";
    message: string;
    progress: number | null;
  }

  interface ModelProps {
    chat_template: string;
    bos_token: string;
    eos_token: string;
  }

  interface ModelView {
    state: "ready" | "loading" | "missing";
    message: string;
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
    kv_mode: string;
    file: string;
    size_bytes: number;
    parameters: number;
    remote_host: string;
    attention_source: string;
    note: string;
    thinks: boolean;
    efforts: string[];
    native_tools: boolean;
    change: ModelChange | null;
  }

  interface NegativeFeedback {
    question: string;
  }

  interface NewKey {
    name: string;
    key: string;
  }

  interface NewMessage {
    text: string;
    after?: string | null;
    recall?: RecallChoice | null;
    documents?: AttachedDocument[];
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

  interface Notes {
    content: Record<string, any>;
    version: string;
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
    fade_per_token?: number | null;
    fade_rate?: number | null;
    aggregate?: "mean" | "max" | null;
    decay?: number | null;
    sink?: "max" | "first" | null;
    question_penalty?: number | null;
    prune_pairs?: "apart" | "brighter" | "dimmer" | null;
    protect_recent_exchanges?: number | null;
    protect_used?: boolean | null;
    score_current_turn?: boolean | null;
    resurrection_budget?: number | null;
    resurrection_brightness?: "earned" | "hybrid" | "fresh" | null;
    resurrect_pairs?: "ranked" | "with" | "off" | null;
    user_weight?: number | null;
    min_probability?: number | null;
    memory_scope?: "all" | "tags" | "window" | null;
    recall_tags?: string | null;
    recall_role?: "user" | "assistant" | null;
    recall_since?: string | null;
    recall_before?: string | null;
    recall_thoughts?: boolean | null;
    kv_mode?: "splice" | "exact" | null;
    prefetch?: "off" | "frames" | "load" | "compute" | null;
    idle_reading?: "off" | "mains" | "always" | null;
    timestamps?: boolean | null;
    memory_tree_in_prompt?: boolean | null;
    memory_decay_days?: number | null;
    tools?: "auto" | "native" | "tags" | "off" | null;
    tool_rounds?: number | null;
    engine_name?: string | null;
    remote_scope?: "all" | "window" | "not_private" | null;
    private?: boolean | null;
    document_megabytes?: number | null;
    document_tokens?: number | null;
    document_seconds?: number | null;
    capture?: "off" | "mean" | "retrieval" | "all" | null;
    capture_megabytes?: number | null;
  }

  interface People {
    people: PersonView[];
  }

  interface PersonView {
    name: string;
    created: string;
    revoked: string | null;
  }

  interface Persona {
    system_prompt: string;
    user_name: string;
    ai_name: string;
  }

  interface PersonaChange {
    system_prompt?: string | null;
    user_name?: string | null;
    ai_name?: string | null;
  }

  interface PrefillEvent {
    reused: number;
    restored: number;
    computed: number;
    seconds: number;
    rebuilt: string;
  }

  interface PrefillPlannedEvent {
    reused: number;
    restored: number;
    computed: number;
  }

  interface PresetView {
    name: string;
    settings: Record<string, boolean | number | string | null>;
    persona: Record<string, string>;
  }

  interface Presets {
    presets: PresetView[];
  }

  interface PruneResult {
    chunks: PrunedChunk[];
    budget: number;
    tokens_over_budget: number;
  }

  interface PrunedBetween {
    total: number;
    items: GraveyardItem[];
    tokens: number;
  }

  interface PrunedChunk {
    key: string;
    tokens: number;
    brightness: number;
    reason: string;
  }

  interface PrunedEvent {
    chunks: PrunedChunk[];
    budget: number;
    tokens_over_budget: number;
    before_turn: boolean;
  }

  interface PrunedGap {
    chunks: number;
    tokens: number;
  }

  interface RecallChoice {
    exclude?: string[];
    include?: string[];
    make_room?: boolean;
  }

  interface RecallPreview {
    tokens: number;
    room: number;
    cost: number;
    resurrect: RecallPreviewChunk[];
    skipped: number;
    no_room: RecallPreviewChunk[];
    below_threshold: RecallPreviewChunk[];
    tokens_to_prune: number;
  }

  interface RecallPreviewChunk {
    key: string;
    part: "hit" | "question" | "answer" | "anchor";
    hit: string;
    similarity: number;
    cost: number;
    words: string[];
    parts: Record<string, number>;
    text: string;
  }

  interface Regenerate {
    turn_id?: string | null;
  }

  interface RegeneratingEvent {
    turn_id: string;
    reply_turn_id: string;
    prefix_tokens: number;
  }

  interface Reindex {
    embedder?: string | null;
  }

  interface RemoteKvForget {
    window?: string | null;
    spans?: number[][];
    windows?: string[];
  }

  interface RemoteKvForgotten {
    done: true;
  }

  interface RemoteKvModel {
    tokenizer: string;
    chat_template: string;
    template_words: Record<string, string>;
    adds_bos: boolean;
    parameters: number;
    wide_layers: number[];
    abilities: Record<string, boolean>;
    heads: Record<string, number>[];
    attention_source: string;
  }

  interface RemoteKvRequest {
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
    temporary?: boolean;
  }

  interface RenamePreset {
    name: string;
    to: string;
  }

  interface ReplaceNotes {
    content: Record<string, any>;
    version?: string | null;
  }

  interface Replay {
    turns: ReplayedTurn[];
  }

  interface ReplayedPrune {
    turn: number;
    key: string;
    brightness: number;
    age: number;
    reason: string;
    text: string;
  }

  interface ReplayedTurn {
    turn: string;
    brightness: Record<string, number>;
    pruned: string[];
    resurrected: string[];
  }

  interface ReplyInProgress {
    turn_id: string;
    position: string;
    text_pieces: string[];
    brightness: number[];
    tool: boolean[];
    thought: boolean[];
  }

  interface ReplyNotStoredEvent {
    message: string;
  }

  interface ReplySource {
    key: string;
    start: string;
    tokens: number;
    text: string;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    share: number | null;
    resurrected: Record<string, any> | null;
  }

  interface ReplySources {
    start: string;
    attribution: AttributionView | null;
  }

  interface ReplyStoredEvent {
    turn_id: string;
    said: string;
    speaker: string;
    chunks: LiveChunk[];
    attribution: AttributionView | null;
    sources: ReplySource[] | null;
    unfinished: boolean;
  }

  interface ResetEvent {
  }

  interface RestoreChunks {
    keys: string[];
  }

  interface RestoredChunks {
    keys: string[];
  }

  type ResurrectReason = "hit" | "question" | "answer" | "anchor";

  interface ResurrectedChunk {
    key: string;
    start: string;
    pinned: boolean;
    tokens: number;
    text_pieces: string[];
    brightness: number[];
    rank: number | null;
    peak: number;
    mean: number;
    resurrected: Record<string, any> | null;
    tool: boolean;
    thought: boolean;
    pruned_before: PrunedGap | null;
    pruned_thoughts: number;
    part: ResurrectReason;
    hit: string;
    similarity: number;
    cost: number;
    words: string[];
    parts: Record<string, number>;
    window: string;
    window_name: string;
    speaker: string;
    said: string;
    pruned_here: boolean;
    document: boolean;
  }

  interface ResurrectedEvent {
    chunks: ResurrectedChunk[];
    cost: number;
    room: number;
    skipped: number;
  }

  type Role = "system" | "user" | "assistant";

  interface SaveMemoryEntry {
    path: string;
    content: any;
    context_tokens?: number;
  }

  interface SavePreset {
    name: string;
    window?: string | null;
    settings?: OwnSettings | null;
    persona?: PersonaChange | null;
  }

  interface SearchHit {
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

  interface SearchResults {
    hits: SearchHit[];
    cost: number | null;
  }

  interface SearchingEvent {
    room: number;
  }

  interface SettingDescription {
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

  interface SettingsChange {
    reset?: ("temperature" | "top_p" | "top_k" | "min_p" | "repeat_penalty" | "seed" | "max_new_tokens" | "stop" |
      "effort" | "max_context_tokens" | "prune_to" | "min_chunk_tokens" | "max_chunk_tokens" | "strategy" |
      "initial_brightness" | "brightness_cap" | "fade_per_token" | "fade_rate" | "aggregate" | "decay" | "sink" |
      "question_penalty" | "prune_pairs" | "protect_recent_exchanges" | "protect_used" | "score_current_turn" |
      "resurrection_budget" | "resurrection_brightness" | "resurrect_pairs" | "user_weight" | "min_probability" |
      "memory_scope" | "recall_tags" | "recall_role" | "recall_since" | "recall_before" | "recall_thoughts" |
      "kv_mode" | "prefetch" | "idle_reading" | "timestamps" | "memory_tree_in_prompt" | "memory_decay_days" | "tools"
      | "tool_rounds" | "engine_name" | "remote_scope" | "private" | "document_megabytes" | "document_tokens" |
      "document_seconds" | "capture" | "capture_megabytes")[];
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
    fade_per_token?: number;
    fade_rate?: number;
    aggregate?: "mean" | "max";
    decay?: number;
    sink?: "max" | "first";
    question_penalty?: number;
    prune_pairs?: "apart" | "brighter" | "dimmer" | null;
    protect_recent_exchanges?: number;
    protect_used?: boolean;
    score_current_turn?: boolean;
    resurrection_budget?: number | null;
    resurrection_brightness?: "earned" | "hybrid" | "fresh";
    resurrect_pairs?: "ranked" | "with" | "off";
    user_weight?: number;
    min_probability?: number;
    memory_scope?: "all" | "tags" | "window";
    recall_tags?: string;
    recall_role?: "user" | "assistant" | null;
    recall_since?: string | null;
    recall_before?: string | null;
    recall_thoughts?: boolean;
    kv_mode?: "splice" | "exact";
    prefetch?: "off" | "frames" | "load" | "compute";
    idle_reading?: "off" | "mains" | "always";
    timestamps?: boolean;
    memory_tree_in_prompt?: boolean;
    memory_decay_days?: number;
    tools?: "auto" | "native" | "tags" | "off";
    tool_rounds?: number;
    engine_name?: string;
    remote_scope?: "all" | "window" | "not_private" | null;
    private?: boolean;
    document_megabytes?: number;
    document_tokens?: number;
    document_seconds?: number;
    capture?: "off" | "mean" | "retrieval" | "all";
    capture_megabytes?: number;
  }

  interface SettingsView {
    described: SettingDescription[];
    values: Record<string, boolean | number | string | null>;
    auto: Record<string, number>;
  }

  interface ShareChange {
    window?: string;
    person: string;
    can_write?: boolean;
  }

  interface ShareView {
    owner: string;
    window: string;
    window_name: string;
    person: string;
    can_write: boolean;
    created: string;
  }

  interface Shares {
    shares: ShareView[];
  }

  interface SnapshotChunk {
    key: string | null;
    text: string;
    tokens: number;
    similarity: number;
    said: string | null;
  }

  interface Status {
    version: string;
    model: ModelView;
    embedder: EmbedderView;
    memory: MemoryView;
    idle_reading: IdleReadingView;
    generating: string[];
  }

  interface StopResult {
    stopped: boolean;
  }

  interface StrategyComparison {
    strategies: Record<string, StrategyResult>;
    agreement: Record<string, number>;
    pruned: Record<string, ReplayedPrune[]>;
    live: Record<string, number[]>;
  }

  interface StrategyResult {
    turns: number;
    pruned: number;
    resurrected: number;
    resurrected_tokens: number;
    live: number;
    median_age: number | null;
    rows: number;
    rows_per_second: number | null;
  }

  interface TagCount {
    tag: string;
    windows: number;
    chunks: number;
  }

  interface TagCounts {
    tags: TagCount[];
  }

  interface TimelineEvent {
    step: number;
    chunk: number;
    event: "pruned" | "resurrected" | "pinned" | "unpinned";
    reason: string;
  }

  interface TokenBudget {
    max_context_tokens: number;
    model_context: number;
    system: number;
    pinned: number;
    live: number;
    frames: number;
    reserve: number;
    free: number;
  }

  interface TokenBytes {
    ids: number[];
    raw: string;
    ends: number[];
    controls: number[];
  }

  interface TokenBytesRequest {
    text?: string | null;
    special?: boolean;
    ids?: number[] | null;
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

  interface TokenSource {
    chunk: number;
    offset: number;
    share: number;
  }

  interface TokenView {
    position: string;
    id: number;
    text: string;
    key: string;
  }

  interface Tokens {
    tokens: TokenView[];
  }

  interface ToolAnsweredEvent {
    text: string;
    ok: boolean;
  }

  interface ToolCalledEvent {
    command: string;
  }

  interface Transcript {
    total: number;
    offset: number;
    turns: TranscriptTurn[];
  }

  interface TranscriptChunk {
    key: string;
    start: string;
    tokens: number;
    text_pieces: string[];
    tool: boolean;
    thought: boolean;
  }

  interface TranscriptTurn {
    turn_id: string;
    role: Role;
    said: string;
    window: string;
    window_name: string;
    speaker: string;
    interrupted: boolean;
    unfinished: boolean;
    versions: number;
    version: number;
    document: boolean;
    sources: ReplySource[] | null;
    chunks: TranscriptChunk[];
  }

  interface TurnReference {
    turn_id: string;
  }

  interface TurnStats {
    tokens: number;
    resurrected: number;
    pruned: number;
    reused: number;
    restored: number;
    computed: number;
    seconds: number;
    tokens_per_second: number;
    overhead_ms_per_turn: number;
    recall_ms: number;
    overhead_ms_after: number;
    overhead_ms_per_token: number;
    thought_tokens: number;
    only_thought: boolean;
    nothing_added: boolean;
    overhead_tokens: number;
    malformed_rows: number;
    server_prompt_tokens: number;
    server_cached_tokens: number;
  }

  interface TurnVersion {
    turn_id: string;
    role: Role;
    speaker: string;
    said: string;
    current: boolean;
    text: string;
  }

  interface TurnVersions {
    versions: TurnVersion[];
  }

  interface UsedByReply {
    turn_id: string;
    said: string;
    window: string;
    window_name: string;
    share: number;
  }

  interface VectorGeneration {
    id: number;
    model: string;
    dimension: number;
    state: "building" | "current" | "retired";
    created: string;
    completed: string | null;
    vectors: number;
    wanted: number;
  }

  interface Window {
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
    pruned_chunks: number;
    generating: boolean;
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
      "initial_brightness" | "brightness_cap" | "fade_per_token" | "fade_rate" | "aggregate" | "decay" | "sink" |
      "question_penalty" | "prune_pairs" | "protect_recent_exchanges" | "protect_used" | "score_current_turn" |
      "resurrection_budget" | "resurrection_brightness" | "resurrect_pairs" | "user_weight" | "min_probability" |
      "memory_scope" | "recall_tags" | "recall_role" | "recall_since" | "recall_before" | "recall_thoughts" |
      "kv_mode" | "prefetch" | "idle_reading" | "timestamps" | "memory_tree_in_prompt" | "memory_decay_days" | "tools"
      | "tool_rounds" | "engine_name" | "remote_scope" | "private" | "document_megabytes" | "document_tokens" |
      "document_seconds" | "capture" | "capture_megabytes")[];
  }

  interface WindowContext {
    window: string;
    version: number;
    last_event: string;
    size: number;
    system_tokens: number;
    system_text: string;
    budget: TokenBudget;
    brightness: BrightnessRange;
    turns: LiveTurn[];
    pruned_after: PrunedGap | null;
    generating: ReplyInProgress | null;
    reply_not_stored: string | null;
    stats: ContextStats;
  }

  interface WindowEngineView {
    name: string;
    known: boolean;
    model: string;
    remote_host: string;
    remote_scope: "all" | "window" | "not_private";
    private: boolean;
    attention_source: string;
    malformed_rows: number;
  }

  interface WindowTimeline {
    turns: string[];
    keys: string[];
    tokens: number[];
    foreign: number[];
    live: number[];
    pinned: number[];
    events: TimelineEvent[];
  }

  interface Windows {
    windows: Window[];
  }
}
