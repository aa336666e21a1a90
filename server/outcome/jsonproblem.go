package outcome

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// JSONProblem says why encoding/json could not read a text, in the words of JSON: names of
// Go types are not for clients.
func JSONProblem(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	where := "it"
	if wrong.Field != "" {
		where = wrong.Field
	}
	return fmt.Sprintf("%s is JSON of kind %s: expected %s", where, strings.Replace(wrong.Value, "bool", "boolean", 1), jsonKind(wrong.Type))
}

// jsonKind is the kind of JSON that is read into a Go type.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.Struct, reflect.Map, reflect.Interface:
		return "object"
	}
	return "number"
}
