package rest

import (
	"net/http"
	"strings"

	"kiln/server/interaction"
)

// prefer is the header Prefer. Spec: RFC 7240, https://hl7.org/fhir/R4/http.html#ops.
type prefer struct {
	ret     interaction.Return
	lenient bool
	async   bool // respond-async
}

// preferences reads Prefer. Unknown preferences are ignored.
// Spec: RFC 7240 §2.
func preferences(r *http.Request) prefer {
	var p prefer
	for _, line := range r.Header["Prefer"] {
		for item := range strings.FieldsFuncSeq(line, func(c rune) bool { return c == ',' || c == ';' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
			value = strings.Trim(strings.TrimSpace(value), `"`)
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "return":
				switch ret := interaction.Return(value); ret {
				case interaction.ReturnMinimal, interaction.ReturnRepresentation, interaction.ReturnOutcome:
					p.ret = ret
				}
			case "respond-async":
				p.async = true
			case "handling":
				p.lenient = value == "lenient"
			}
		}
	}
	return p
}
