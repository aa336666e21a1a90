package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	yamlv3 "go.yaml.in/yaml/v3"

	"kiln/server"
	"kiln/server/outcome"
	"kiln/server/settings"
	"kiln/server/store"
)

// config is `kiln config`.
func config() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Show and check the configuration"}
	c.AddCommand(
		&cobra.Command{
			Use:   "print",
			Short: "Print the configuration in force, as kiln.yaml, with secrets masked",
			Example: `  kiln config print
  KILN_SEARCH__MAX_COUNT=500 kiln config print --json`,
			Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				l, err := readConfig(c.Flags(), os.Environ())
				if err != nil {
					return err
				}
				l.addSettings(c.Context())
				tree := masked(reflect.ValueOf(l.config))
				if wantsJSON(c) {
					return printJSON(c.OutOrStdout(), tree)
				}
				for _, key := range keys() {
					from := l.origin[key.name]
					if from == "" {
						from = "default"
					}
					value, err := yamlv3.Marshal(key.show(l.config))
					if err != nil {
						return err
					}
					fmt.Fprintf(c.OutOrStdout(), "%-36s # %s; %s\n", key.name+": "+flow(value), key.doc, from)
				}
				return nil
			},
		},
		&cobra.Command{
			Use:   "check",
			Short: "Check whether a server could start with this configuration",
			Long: `Check every key, the address, the terminology server and the database of
database.url. A private PostgreSQL is not started: kiln doctor does that. Every
wrong key is reported, with its value.`,
			Example: `  kiln config check
  kiln config check --config /etc/kiln.yaml`,
			Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				cfg, err := loadConfig(c)
				if err := errors.Join(err, cfg.CheckServe()); err != nil {
					return err
				}
				var found findings
				found.checkSurroundings(c, cfg)
				if cfg.Database.URL != "" {
					found.checkDatabase(c.Context(), cfg.Database.URL, cfg.Auth.Enabled)
				}
				if wantsJSON(c) {
					if err := printJSON(c.OutOrStdout(), found); err != nil {
						return err
					}
				}
				if err := found.err(); err != nil {
					return err
				}
				if !wantsJSON(c) {
					fmt.Fprintln(c.OutOrStdout(), "the configuration is good")
				}
				return nil
			},
		},
	)
	return c
}

// settingsTime bounds how long config print waits for the database.
const settingsTime = 2 * time.Second

// addSettings gives the settings in the database precedence over the file. A database that
// cannot be reached, such as a private one whose server does not run, adds nothing.
func (l *loaded) addSettings(ctx context.Context) {
	if l.config.Database.URL == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settingsTime)
	defer cancel()
	list, err := store.ReadSettings(ctx, l.config.Database.URL)
	if err != nil {
		return
	}
	config, keys := settings.Overlay(settings.Config[server.Config]{Start: l.config, Origin: l.origin, Check: server.Config.Check,
		Logger: slog.New(slog.DiscardHandler)}, list)
	l.config = config
	for _, key := range keys {
		l.origin[key] = settings.SourceDatabase
	}
}

// flow writes a YAML list on one line.
func flow(value []byte) string {
	lines := strings.Split(strings.TrimSpace(string(value)), "\n")
	if !strings.HasPrefix(lines[0], "- ") {
		return lines[0]
	}
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "- ")
	}
	return "[" + strings.Join(lines, ", ") + "]"
}

// loaded is a configuration and where each key of it was set.
type loaded struct {
	config server.Config
	origin map[string]string
}

// flagKeys are the flags that set a key.
var flagKeys = map[string]string{
	"listen":       "server.listen",
	"base-url":     "server.base_url",
	"database-url": "database.url",
	"data-dir":     "database.data_dir",
	"pprof":        "server.pprof",
}

const envPrefix = "KILN_"

// readConfig puts the configuration together: flag > environment > file >
// default. Environment names are KILN_, then the key with __ between levels. The
// error has a line for each key that does not exist, with the nearest one, and for
// each value of another type.
func readConfig(flags *pflag.FlagSet, environ []string) (loaded, error) {
	r := &configReader{loaded: loaded{config: server.Default(), origin: make(map[string]string)}, known: make(map[string]key), k: koanf.New(".")}
	for _, k := range keys() {
		r.known[k.name] = k
	}
	if err := r.readFile(flags); err != nil {
		return r.loaded, err
	}
	if err := r.readEnvironment(environ); err != nil {
		return r.loaded, err
	}
	if err := r.readFlags(flags); err != nil {
		return r.loaded, err
	}
	if err := r.k.Unmarshal("", &r.config); err != nil {
		return r.loaded, fmt.Errorf("configuration: %w", err)
	}
	return r.loaded, errors.Join(r.wrong...)
}

// configReader merges the layers of a configuration.
type configReader struct {
	loaded
	known map[string]key
	k     *koanf.Koanf
	wrong []error // a line for each key that is wrong
}

// refuse records an error of the configuration.
func (r *configReader) refuse(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Errorf(format, args...))
}

// merge puts a layer above the earlier ones, and refuses wrong keys and values. from is the name of the layer.
func (r *configReader) merge(layer *koanf.Koanf, from string) error {
	for _, name := range layer.Keys() {
		its, ok := r.known[name]
		switch {
		case layer.Get(name) == nil && (ok || isSection(name)):
			layer.Delete(name) // nothing is set, as where the keys of a section are comments
		case !ok:
			near := outcome.DidYouMean(name, names())
			if from == "environment" && near != "" {
				near += " (" + envName(outcome.Nearest(name, names())) + ")"
			}
			r.refuse("%s: unknown key %s%s; its value is %q", from, name, near, shown(layer.Get(name)))
			layer.Delete(name)
		case its.list && its.element == reflect.Map && from == "environment":
			r.refuse("environment: %s has entries with fields: it can only be set in the file", name)
			layer.Delete(name)
		case its.expected(layer.Get(name)) != "":
			r.refuse("%s: %s is %q: expected %s", from, name, shown(mask(reflect.ValueOf(layer.Get(name)), its.secret)), its.expected(layer.Get(name)))
			layer.Delete(name)
		default:
			r.origin[name] = from
		}
	}
	return r.k.Merge(layer)
}

// readFile reads the file of --config, or kiln.yaml where there is one.
func (r *configReader) readFile(flags *pflag.FlagSet) error {
	path, err := flags.GetString("config")
	if err != nil {
		path = ""
	}
	explicit := path != ""
	if !explicit {
		path = "kiln.yaml"
	}
	layer := koanf.New(".")
	switch err := layer.Load(file.Provider(path), oneDocument{yaml.Parser()}); {
	case errors.Is(err, fs.ErrNotExist) && !explicit:
		return nil
	case err != nil && strings.Contains(err.Error(), "into map["):
		return fmt.Errorf("%s: expected keys with their values, as in search.max_count: 100, found something else", path)
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	return r.merge(layer, path)
}

// readEnvironment reads variables. Only names with two levels can be keys; one that looks like a key
// and is none would be passed over without a word.
func (r *configReader) readEnvironment(environ []string) error {
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		upper := strings.ToUpper(name)
		if name == upper || !strings.HasPrefix(upper, envPrefix) {
			continue
		}
		if i := slices.IndexFunc(names(), func(key string) bool { return envName(key) == upper }); i >= 0 {
			r.refuse("environment: %s is no key, did you mean %s?", name, upper)
		} else if meant := nearMiss(upper, value); meant != "" {
			r.refuse("environment: %s is no key, did you mean %s?", name, meant)
		}
	}
	layer := koanf.New(".")
	if err := layer.Load(env.Provider(".", env.Opt{
		Prefix:        envPrefix,
		EnvironFunc:   func() []string { return environ },
		TransformFunc: r.keyOfVariable,
	}), nil); err != nil {
		return err
	}
	return r.merge(layer, "environment")
}

// keyOfVariable returns the key and the value of a variable, "" where it is none.
func (r *configReader) keyOfVariable(name, value string) (string, any) {
	if meant := nearMiss(name, value); meant != "" {
		r.refuse("environment: %s is no key, did you mean %s?", name, meant)
		return "", nil
	}
	if !strings.Contains(name, "__") {
		return "", nil
	}
	name = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "__", ".")
	if r.known[name].list {
		return name, splitList(value)
	}
	return name, value
}

// readFlags reads the flags that were given.
func (r *configReader) readFlags(flags *pflag.FlagSet) error {
	set := make(map[string]any)
	for flag, name := range flagKeys {
		if f := flags.Lookup(flag); f != nil && f.Changed {
			set[name] = f.Value.String()
		}
	}
	layer := koanf.New(".")
	if err := layer.Load(confmap.Provider(set, "."), nil); err != nil {
		return err
	}
	return r.merge(layer, "flag")
}

// oneDocument is a parser of YAML that refuses further documents after the first, instead
// of ignoring them.
type oneDocument struct{ *yaml.YAML }

func (p oneDocument) Unmarshal(text []byte) (map[string]any, error) {
	d := yamlv3.NewDecoder(bytes.NewReader(text))
	for n := 0; ; n++ {
		if err := d.Decode(new(yamlv3.Node)); err != nil {
			break // the end, or an error that the parser describes better
		}
		if n > 0 {
			return nil, errors.New("expected one document, found another after ---")
		}
	}
	return p.YAML.Unmarshal(text)
}

// isSection reports whether name is a part of the configuration that has keys.
func isSection(name string) bool {
	return slices.ContainsFunc(names(), func(key string) bool { return strings.HasPrefix(key, name+".") })
}

// envName is the environment variable of a key.
func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))
}

// nearMiss is the variable that was meant by one that sets nothing: a key with
// single underscores, the name of a flag, either with a letter wrong, or a name that
// other programs have for the same; "" for a variable that has nothing to do with the
// configuration.
func nearMiss(name, value string) string {
	if strings.Contains(name, "__") {
		return "" // a key, known or not
	}
	switch strings.TrimPrefix(name, envPrefix) {
	case "DB", "DB_URL", "DATABASE", "DSN", "DATABASE_DSN", "POSTGRES_URL", "PG_URL":
		return envName("database.url")
	case "ADDR", "ADDRESS":
		return envName("server.listen")
	case "PORT": // tcp://… is a container platform's
		if _, err := strconv.Atoi(value); err == nil {
			return envName("server.listen")
		}
	case "CONFIG", "CONFIG_FILE":
		return "the flag --config"
	}
	if section := strings.ToLower(strings.TrimPrefix(name, envPrefix)); isSection(section) {
		for _, key := range names() {
			if strings.HasPrefix(key, section+".") {
				return "a key of " + section + ", such as " + envName(key)
			}
		}
	}
	squeeze := strings.NewReplacer("_", "", ".", "", "-", "")
	meant := make(map[string]string) // key by squeezed name
	for flag, key := range flagKeys {
		meant[squeeze.Replace(flag)] = key
	}
	for _, key := range names() {
		meant[squeeze.Replace(key)] = key
	}
	given := squeeze.Replace(strings.ToLower(strings.TrimPrefix(name, envPrefix)))
	if key, ok := meant[given]; ok {
		return envName(key)
	}
	for _, near := range slices.Sorted(maps.Keys(meant)) {
		if len(given) >= 6 && outcome.Within(1+len(given)/12, given, near) {
			return envName(meant[near])
		}
	}
	return ""
}

// shown is a value as a message shows it.
func shown(value any) string {
	const most = 60
	text := fmt.Sprint(value)
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return text
}

func splitList(value string) []string {
	out := []string{}
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// key is one key of the configuration.
type key struct {
	name, doc string
	secret    string // "", "url" or "yes"
	list      bool
	kind      reflect.Kind
	element   reflect.Kind // of a list
	index     []int
}

// expected is the expected form of the key's value, "" if value has it.
func (k key) expected(value any) string {
	if !k.list {
		return expected(k.kind, value)
	}
	items := []any{value} // one that is not in a list is a list of one
	if v := reflect.ValueOf(value); v.Kind() == reflect.Slice {
		items = items[:0]
		for i := range v.Len() {
			items = append(items, v.Index(i).Interface())
		}
	}
	for _, item := range items {
		if want := expected(k.element, item); want != "" {
			return "a list, of each " + want
		}
	}
	return ""
}

// expected is the expected form of a value of a kind, "" if value has it.
func expected(kind reflect.Kind, value any) string {
	text := fmt.Sprint(value)
	switch kind {
	case reflect.Map:
		if reflect.ValueOf(value).Kind() != reflect.Map {
			return "an entry with fields"
		}
	case reflect.Int, reflect.Int64:
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			return "a whole number"
		}
	case reflect.Float64:
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			return "a number"
		}
	case reflect.Bool:
		if _, err := strconv.ParseBool(text); err != nil {
			return "true or false"
		}
	case reflect.String:
		if kind := reflect.ValueOf(value).Kind(); kind == reflect.Map || kind == reflect.Slice {
			return "one text"
		}
	}
	return ""
}

// show is the value of the key, with secrets masked.
func (k key) show(c server.Config) any {
	return mask(reflect.ValueOf(c).FieldByIndex(k.index), k.secret)
}

// keys lists every key, in the order of the structs.
func keys() []key {
	var out []key
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, at := prefix+f.Tag.Get("koanf"), append(slices.Clone(index), i)
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, name+".", at)
				continue
			}
			k := key{name: name, doc: f.Tag.Get("doc"), secret: f.Tag.Get("secret"), list: f.Type.Kind() == reflect.Slice, kind: f.Type.Kind(), index: at}
			if k.list {
				k.element = f.Type.Elem().Kind()
			}
			out = append(out, k)
		}
	}
	walk(reflect.TypeFor[server.Config](), "", nil)
	return out
}

func names() []string {
	var out []string
	for _, k := range keys() {
		out = append(out, k.name)
	}
	return out
}

// masked is the configuration as a tree, with secrets masked.
func masked(v reflect.Value) map[string]any {
	out := make(map[string]any)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Type.Kind() == reflect.Struct {
			out[f.Tag.Get("koanf")] = masked(v.Field(i))
			continue
		}
		out[f.Tag.Get("koanf")] = mask(v.Field(i), f.Tag.Get("secret"))
	}
	return out
}

func mask(v reflect.Value, secret string) any {
	if secret == "" || v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
		return v.Interface()
	}
	if secret == "url" && v.Kind() == reflect.String {
		return settings.Redact(v.String())
	}
	if list, ok := v.Interface().([]string); ok && secret == "url" {
		shown := make([]string, len(list))
		for i, url := range list {
			shown[i] = settings.Redact(url)
		}
		return shown
	}
	return "********"
}
