package fhir

import (
	"html"
	"strings"
)

// maxNarrative is the length in bytes up to which a narrative is found by its words:
// PostgreSQL's text search takes a megabyte, and words at both ends count.
const maxNarrative = 256 << 10

// narrativeText returns the text of a narrative's XHTML, folded: elements become
// white space, entities their characters.
func narrativeText(xhtml string) string {
	var b strings.Builder
	for xhtml != "" {
		text, rest, tag := strings.Cut(xhtml, "<")
		b.WriteString(html.UnescapeString(text))
		if !tag {
			break
		}
		b.WriteByte(' ')
		end := ">"
		if strings.HasPrefix(rest, "!--") {
			end = "-->"
		}
		if _, xhtml, tag = strings.Cut(rest, end); !tag {
			break
		}
	}
	folded := FoldText(b.String())
	if len(folded) > maxNarrative {
		folded = strings.ToValidUTF8(folded[:maxNarrative], "")
	}
	return strings.ReplaceAll(folded, "\x00", "")
}

// NarrativeHash tells one narrative from another.
func NarrativeHash(text string) int64 { return int64(hash('n', text)) }
