package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/fnv"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kiln/server/outcome"
	"kiln/server/store"
)

// The sources of a value, weakest first.
const (
	SourceDefault     = "default"
	SourceFile        = "file"
	SourceDatabase    = "database"
	SourceEnvironment = "environment"
	SourceFlag        = "flag"
)

// Config is the input of Open.
type Config[C any] struct {
	Start   C // the configuration at the start
	Default C
	// Origin says of each key that was set where: SourceFlag, SourceEnvironment, or
	// a file.
	Origin map[string]string
	Check  func(C) error // refuses values that no server can run with
	// CheckFiles refuses a new value of a key that names a file which cannot be used; nil
	// takes every name.
	CheckFiles func(key string, c C) error
	Store      *store.Store
	Flags      []Flag
	Logger     *slog.Logger
	Now        func() time.Time
}

// Settings is the configuration in force of one server.
type Settings[C any] struct {
	Config[C]
	keys []Key

	current atomic.Pointer[snapshot[C]]
	refresh sync.Mutex
	changed []func(C)
	forgets atomic.Bool // the settings are to be read anew, whatever their version is
}

// snapshot is the settings at one moment. It is never changed.
type snapshot[C any] struct {
	config    C
	overrides map[string]store.Setting // by key
	version   int64
}

// Open reads the settings of the database.
func Open[C any](ctx context.Context, c Config[C]) (*Settings[C], error) {
	s := &Settings[C]{Config: c, keys: Keys[C]()}
	s.current.Store(&snapshot[C]{config: c.Start, version: -1})
	signals, err := c.Store.Signals(ctx)
	if err != nil {
		return nil, err
	}
	return s, s.Refresh(ctx, signals[store.SignalSettings].Version)
}

// Current is the configuration in force. It is not to be changed.
func (s *Settings[C]) Current() *C { return &s.current.Load().config }

// OnChange makes f run, with the new configuration, after every change of it, until
// the server ends; f is not called for the configuration as it is. The calls come
// one after the other, each within a quarter of a second of the change, on every
// server of the database. f must not call Refresh, Put or Delete.
func (s *Settings[C]) OnChange(f func(C)) {
	s.refresh.Lock()
	defer s.refresh.Unlock()
	s.changed = append(s.changed, f)
}

// Forget makes the next Refresh read the settings, whatever their version is.
func (s *Settings[C]) Forget() { s.forgets.Store(true) }

// Refresh reads the settings again, unless version is the one that is known.
func (s *Settings[C]) Refresh(ctx context.Context, version int64) error {
	s.refresh.Lock()
	defer s.refresh.Unlock()
	at := s.current.Load()
	forgets := s.forgets.Swap(false)
	if version == at.version && !forgets {
		return nil
	}
	list, err := s.Store.Settings(ctx)
	if err != nil {
		if forgets {
			s.forgets.Store(true)
		}
		return err
	}
	next := &snapshot[C]{version: version}
	next.config, next.overrides = s.overlay(list)
	s.current.Store(next)
	if at.version >= 0 && !reflect.DeepEqual(at.config, next.config) {
		for _, f := range s.changed {
			f(next.config)
		}
	}
	return nil
}

// overlay returns the configuration of the start, overridden by the usable settings of the database that no other
// source hides.
func (s *Settings[C]) overlay(list []store.Setting) (config C, overrides map[string]store.Setting) {
	config, overrides = s.Start, make(map[string]store.Setting, len(list))
	var left []store.Setting
	for _, o := range list {
		if k, ok := s.key(o.Name); ok && !k.File && s.hides(k.Name) == "" {
			left = append(left, o) // the others are of another version, or we are above them
		}
	}
	if all, err := s.with(config, left...); err == nil {
		for _, o := range left {
			overrides[o.Name] = o
		}
		return all, overrides
	}
	// A value may be usable only beside another one, as a page beside the largest page: the
	// order in which they are taken must not count.
	for taken := true; taken; {
		taken = false
		var not []store.Setting
		for _, o := range left {
			if trial, err := s.with(config, o); err == nil {
				config, taken = trial, true
				overrides[o.Name] = o
			} else {
				not = append(not, o)
			}
		}
		left = not
	}
	for _, o := range left {
		_, err := s.with(config, o)
		s.Logger.Warn("a setting in the database is not usable", slog.String("key", o.Name), slog.Any("error", err))
	}
	return config, overrides
}

// with returns a configuration with settings of the database above it. It fails if no server can run with them.
func (s *Settings[C]) with(config C, list ...store.Setting) (C, error) {
	for _, o := range list {
		k, _ := s.key(o.Name)
		if err := k.set(reflect.ValueOf(&config).Elem(), o.Value); err != nil {
			return config, err
		}
	}
	return config, s.Check(config)
}

// Overlay is the configuration that a server would begin with that was started with
// c.Start, and the keys that it has from the database, whose settings are list.
func Overlay[C any](c Config[C], list []store.Setting) (config C, keys []string) {
	s := &Settings[C]{Config: c, keys: Keys[C]()}
	config, overrides := s.overlay(list)
	return config, slices.Sorted(maps.Keys(overrides))
}

func (s *Settings[C]) key(name string) (Key, bool) {
	for _, k := range s.keys {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

// hides is the source above the database that sets a key, "" where none does.
func (s *Settings[C]) hides(name string) string {
	switch from := s.Origin[name]; from {
	case SourceEnvironment, SourceFlag:
		return from
	}
	return ""
}

// Entry is a key with its value.
type Entry struct {
	Key         string `json:"key"`
	Category    string `json:"category"`
	Value       any    `json:"value"`
	Default     any    `json:"default"`
	Source      string `json:"source"`
	Description string `json:"description"`
	Secret      bool   `json:"is_secret"`
	Restart     bool   `json:"restart_required"`
}

// Entries are the keys of a category, of all with "". An unknown category is
// not-found and names near ones.
func (s *Settings[C]) Entries(category string) ([]Entry, error) {
	at := s.current.Load()
	config, std := reflect.ValueOf(at.config), reflect.ValueOf(s.Default)
	var out []Entry
	var categories []string
	for _, k := range s.keys {
		if !slices.Contains(categories, k.Category()) {
			categories = append(categories, k.Category())
		}
		if category == "" || k.Category() == category {
			out = append(out, s.entry(at, k, config, std))
		}
	}
	if out == nil {
		return nil, outcome.New(outcome.CodeNotFound, "there is no configuration category %q%s; there are %s", clip(category), outcome.DidYouMean(category, categories), strings.Join(categories, ", "))
	}
	return out, nil
}

func (s *Settings[C]) entry(at *snapshot[C], k Key, config, std reflect.Value) Entry {
	return Entry{Key: k.Name, Category: k.Category(), Value: k.value(config), Default: k.value(std), Source: s.source(at, k.Name),
		Description: k.Doc, Secret: k.Secret != "", Restart: k.Restart}
}

func (s *Settings[C]) source(at *snapshot[C], name string) string {
	switch from := s.Origin[name]; {
	case from == SourceEnvironment || from == SourceFlag:
		return from
	case at.overrides[name].Name != "":
		return SourceDatabase
	case from != "":
		return SourceFile
	}
	return SourceDefault
}

// Put keeps a value for a key in the database, and returns the key's entry. It
// fails with not-found for an unknown key, invalid for a value that no server can
// run with, and conflict where the environment or a flag hides the value.
func (s *Settings[C]) Put(ctx context.Context, name string, value json.RawMessage, by string) (Entry, error) {
	return s.put(ctx, store.Setting{Name: name, Value: value, ChangedBy: by})
}

func (s *Settings[C]) put(ctx context.Context, v store.Setting) (Entry, error) {
	k, err := s.changeable(v.Name)
	if err != nil {
		return Entry{}, err
	}
	config := *s.Current()
	if bytes.Equal(bytes.TrimSpace(v.Value), []byte("null")) || !plain(k.typ) || k.set(reflect.ValueOf(&config).Elem(), v.Value) != nil {
		return Entry{}, outcome.Invalid("%s is %s: expected %s", v.Name, clip(string(v.Value)), k.expects())
	}
	if err := s.Check(config); err != nil {
		return Entry{}, outcome.Invalid("%v", err)
	}
	if s.CheckFiles != nil {
		if err := s.CheckFiles(v.Name, config); err != nil {
			return Entry{}, outcome.Invalid("%v", err)
		}
	}
	v.Changed = s.Now()
	if err := s.Store.PutSetting(ctx, v); err != nil {
		return Entry{}, err
	}
	return s.reread(ctx, k)
}

// Delete removes a value from the database and returns the entry then in force.
func (s *Settings[C]) Delete(ctx context.Context, name string) (Entry, error) {
	k, err := s.changeable(name)
	if err != nil {
		return Entry{}, err
	}
	if _, err := s.Store.DeleteSetting(ctx, name); err != nil {
		return Entry{}, err
	}
	return s.reread(ctx, k)
}

func (s *Settings[C]) changeable(name string) (Key, error) {
	k, ok := s.key(name)
	if !ok {
		var names []string
		for _, k := range s.keys {
			names = append(names, k.Name)
		}
		return k, outcome.New(outcome.CodeNotFound, "there is no configuration key %q%s", clip(name), outcome.DidYouMean(name, names))
	}
	if k.File {
		return k, outcome.Invalid("%s leads to the database or encrypts its content, and so cannot be stored in it: set it in the file, the environment or by a flag", name)
	}
	if from := s.hides(name); from != "" {
		return k, outcome.New(outcome.CodeConflict, "%s is set by the %s of this server, which hides the value in the database", name, from)
	}
	return k, nil
}

func (s *Settings[C]) reread(ctx context.Context, k Key) (Entry, error) {
	signals, err := s.Store.Signals(ctx)
	if err != nil {
		return Entry{}, err
	}
	if err := s.Refresh(ctx, signals[store.SignalSettings].Version); err != nil {
		return Entry{}, err
	}
	at := s.current.Load()
	return s.entry(at, k, reflect.ValueOf(at.config), reflect.ValueOf(s.Default)), nil
}

// Flag is a switch of a behaviour. It is a boolean key under another name.
type Flag struct {
	Name, Key, Doc string
}

// FlagEntry is a flag with its state.
type FlagEntry struct {
	Name        string   `json:"name"`
	Enabled     bool     `json:"enabled"`
	Type        string   `json:"flag_type"` // boolean, percentage or clients
	Percentage  *int32   `json:"percentage,omitempty"`
	Clients     []string `json:"clients,omitempty"`
	Description string   `json:"description"`
	Source      string   `json:"source"`
}

// FlagEntries are all flags.
func (s *Settings[C]) FlagEntries() []FlagEntry {
	out := []FlagEntry{}
	for _, f := range s.Flags {
		if _, ok := s.key(f.Key); ok {
			out = append(out, s.flagEntry(f))
		}
	}
	return out
}

// FlagEntry is one flag. An unknown one is not-found and names near ones.
func (s *Settings[C]) FlagEntry(name string) (FlagEntry, error) {
	f, err := s.flag(name)
	if err != nil {
		return FlagEntry{}, err
	}
	return s.flagEntry(f), nil
}

func (s *Settings[C]) flag(name string) (Flag, error) {
	var names []string
	for _, f := range s.Flags {
		if _, ok := s.key(f.Key); ok && f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Flag{}, outcome.New(outcome.CodeNotFound, "there is no feature flag %q%s", clip(name), outcome.DidYouMean(name, names))
}

func (s *Settings[C]) flagEntry(f Flag) FlagEntry {
	at := s.current.Load()
	o := at.overrides[f.Key]
	e := FlagEntry{Name: f.Name, Enabled: s.on(at, f), Type: "boolean", Percentage: o.Percentage, Clients: o.Clients, Description: f.Doc, Source: s.source(at, f.Key)}
	switch {
	case len(o.Clients) > 0:
		e.Type = "clients"
	case o.Percentage != nil:
		e.Type = "percentage"
	}
	return e
}

func (s *Settings[C]) on(at *snapshot[C], f Flag) bool {
	k, _ := s.key(f.Key)
	return reflect.ValueOf(&at.config).Elem().FieldByIndex(k.index).Bool()
}

// PutFlag switches a flag, for all clients, for a percentage of them, or for some by
// name.
func (s *Settings[C]) PutFlag(ctx context.Context, name string, enabled bool, percentage *int32, clients []string, by string) (FlagEntry, error) {
	f, err := s.flag(name)
	if err != nil {
		return FlagEntry{}, err
	}
	if percentage != nil && (*percentage < 0 || *percentage > 100) {
		return FlagEntry{}, outcome.Invalid("percentage is %d: expected 0 to 100", *percentage)
	}
	value, err := json.Marshal(enabled)
	if err != nil {
		return FlagEntry{}, err
	}
	if _, err := s.put(ctx, store.Setting{Name: f.Key, Value: value, Percentage: percentage, Clients: clients, ChangedBy: by}); err != nil {
		return FlagEntry{}, err
	}
	return s.flagEntry(f), nil
}

// DeleteFlag restores the value of a flag without the database.
func (s *Settings[C]) DeleteFlag(ctx context.Context, name string) (FlagEntry, error) {
	f, err := s.flag(name)
	if err != nil {
		return FlagEntry{}, err
	}
	if _, err := s.Delete(ctx, f.Key); err != nil {
		return FlagEntry{}, err
	}
	return s.flagEntry(f), nil
}

// Enabled reports whether a flag is on for a client; "" is a client without a name,
// which a flag for some clients only is off for.
func (s *Settings[C]) Enabled(name, client string) bool {
	at := s.current.Load()
	for _, f := range s.Flags {
		if f.Name != name {
			continue
		}
		if _, ok := s.key(f.Key); !ok || !s.on(at, f) {
			return false
		}
		o, ok := at.overrides[f.Key]
		if !ok || o.Percentage == nil && len(o.Clients) == 0 {
			return true
		}
		return slices.Contains(o.Clients, client) || o.Percentage != nil && share(name, client) < *o.Percentage
	}
	return false
}

// share is where a client stands among a hundred, another place for each flag.
func share(flag, client string) int32 {
	h := fnv.New32a()
	h.Write([]byte(flag))
	h.Write([]byte{0})
	h.Write([]byte(client))
	return int32(h.Sum32() % 100)
}

// clip limits the input that an error repeats.
func clip(text string) string { return outcome.Clip(text) }
