package settings

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// Key is one key of a configuration struct, from the tags of its field: koanf (the last part of the name), doc,
// secret ("url" masks the passwords of a URL, "yes" the whole value), restart (read at start only) and
// file (needed to reach or decrypt the database).
type Key struct {
	Name    string // dotted: search.default_count
	Doc     string
	Secret  string
	Restart bool
	File    bool // needed to reach or decrypt the database, which therefore cannot contain it
	index   []int
	typ     reflect.Type
}

// Keys lists the keys of C in the order of its fields.
func Keys[C any]() []Key {
	var out []Key
	var walk func(t reflect.Type, prefix string, index []int, restart bool)
	walk = func(t reflect.Type, prefix string, index []int, restart bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, at := prefix+f.Tag.Get("koanf"), append(slices.Clone(index), i)
			_, own := f.Tag.Lookup("restart")
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, name+".", at, restart || own)
				continue
			}
			_, file := f.Tag.Lookup("file")
			out = append(out, Key{name, f.Tag.Get("doc"), f.Tag.Get("secret"), restart || own || !plain(f.Type), file, at, f.Type})
		}
	}
	walk(reflect.TypeFor[C](), "", nil, false)
	return out
}

// plain reports whether a value of a type can be set by one JSON value.
func plain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64, reflect.String:
		return true
	case reflect.Slice:
		return plain(t.Elem())
	case reflect.Map: // an entry of a list, as in the file
		return t.Key().Kind() == reflect.String
	}
	return false
}

// Category is the first part of the name.
func (k Key) Category() string {
	category, _, _ := strings.Cut(k.Name, ".")
	return category
}

// value is the key's value in a configuration, with secrets masked.
func (k Key) value(config reflect.Value) any {
	v := config.FieldByIndex(k.index)
	if k.Secret != "" && !v.IsZero() {
		if list, ok := v.Interface().([]string); ok && k.Secret == "url" {
			shown := make([]string, len(list))
			for i, url := range list {
				shown[i] = Redact(url)
			}
			return shown
		}
		if k.Secret == "url" {
			return Redact(v.String())
		}
		return "********"
	}
	if v.Kind() == reflect.Slice && v.IsNil() {
		return []any{}
	}
	return v.Interface()
}

// set writes a JSON value into a configuration.
func (k Key) set(config reflect.Value, value json.RawMessage) error {
	v := reflect.New(k.typ)
	if err := json.Unmarshal(value, v.Interface()); err != nil {
		return err
	}
	config.FieldByIndex(k.index).Set(v.Elem())
	return nil
}

// expects returns the expected type in words.
func (k Key) expects() string {
	if t, ok := reflect.Zero(k.typ).Interface().(interface{ Expected() string }); ok {
		return t.Expected()
	}
	switch k.typ.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	}
	return "a string"
}
