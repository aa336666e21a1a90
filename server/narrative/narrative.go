package narrative

import (
	"fmt"
	"html"
	"strings"
)

// What a narrative may hold: the elements and attributes of XHTML that format
// text, and nothing that runs, loads or submits.
// Spec: https://hl7.org/fhir/R4/narrative.html#xhtml.
var (
	elements = wordSet(`a abbr acronym b big blockquote br caption cite code col colgroup dd dfn div dl dt em
		h1 h2 h3 h4 h5 h6 hr i img li ol p pre q samp small span strong sub sup table tbody td tfoot th thead tr tt u ul var ins del kbd address center font`)
	attributes = wordSet(`title style class id lang xml:lang xml:space dir accesskey tabindex span width align valign char charoff abbr axis
		headers scope rowspan colspan href name src alt border cellpadding cellspacing summary frame rules height charset type hreflang rel rev
		longdesc cite datetime start value nowrap clear noshade size color face compact bgcolor background shape coords usemap target`)
)

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		set[w] = true
	}
	return set
}

const xhtmlNamespace = "http://www.w3.org/1999/xhtml"

// maxDepth bounds nested elements.
const maxDepth = 500

// Check checks a narrative's div: well-formed, in the XHTML namespace, with
// formatting elements and attributes only, and some content. The error says what
// is wrong. Spec: https://hl7.org/fhir/R4/narrative.html#xhtml, txt-1 and txt-2.
func Check(s string) error {
	s = strings.TrimSpace(s)
	var open []string
	content := false
	for i := 0; i < len(s); {
		lt := strings.IndexByte(s[i:], '<')
		text := s[i:]
		if lt >= 0 {
			text = s[i : i+lt]
		}
		if len(open) == 0 && strings.TrimSpace(text) != "" {
			return fmt.Errorf("the narrative must be one div element")
		}
		if !content && strings.TrimSpace(strings.ReplaceAll(text, "&nbsp;", " ")) != "" {
			content = true
		}
		if err := checkEntities(text); err != nil {
			return err
		}
		if lt < 0 {
			break
		}
		i += lt
		rest := s[i:]
		switch {
		case strings.HasPrefix(rest, "<!--"):
			end := strings.Index(rest, "-->")
			if end < 0 {
				return fmt.Errorf("a comment is not closed")
			}
			i += end + 3
		case strings.HasPrefix(rest, "<!") || strings.HasPrefix(rest, "<?"):
			if strings.HasPrefix(rest, "<![CDATA[") {
				end := strings.Index(rest, "]]>")
				if end < 0 {
					return fmt.Errorf("a CDATA section is not closed")
				}
				content = true
				i += end + 3
				continue
			}
			return fmt.Errorf("declarations and processing instructions are not allowed")
		case strings.HasPrefix(rest, "</"):
			end := strings.IndexByte(rest, '>')
			if end < 0 {
				return fmt.Errorf("a tag is not closed")
			}
			name := strings.TrimSpace(rest[2:end])
			if len(open) == 0 || open[len(open)-1] != name {
				return fmt.Errorf("</%s> closes nothing that is open", clip(name))
			}
			open = open[:len(open)-1]
			i += end + 1
			if len(open) == 0 && strings.TrimSpace(s[i:]) != "" {
				return fmt.Errorf("the narrative must be one div element")
			}
		default:
			n, name, closed, err := checkTag(rest, len(open) == 0)
			if err != nil {
				return err
			}
			if name == "img" {
				content = true
			}
			if !closed {
				if open = append(open, name); len(open) > maxDepth {
					return fmt.Errorf("elements are nested deeper than %d", maxDepth)
				}
			} else if len(open) == 0 {
				return fmt.Errorf("the div is empty")
			}
			i += n
		}
	}
	switch {
	case len(open) > 0:
		return fmt.Errorf("<%s> is not closed", open[len(open)-1])
	case s == "":
		return fmt.Errorf("the narrative must be one div element")
	case !content:
		return fmt.Errorf("the div has no content")
	}
	return nil
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

func nameByte(c byte) bool { return letter(c) || digit(c) || c == ':' || c == '-' || c == '.' }

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// checkTag reads a start tag and returns its length.
func checkTag(s string, root bool) (n int, name string, closed bool, err error) {
	i := 1
	for i < len(s) && nameByte(s[i]) {
		i++
	}
	name = s[1:i]
	if root && name != "div" {
		return 0, name, false, fmt.Errorf("the narrative must be one div element, found <%s>", clip(name))
	}
	if !elements[name] {
		return 0, name, false, fmt.Errorf("element <%s> is not allowed", clip(name))
	}
	namespace := ""
	var seen [16]string
	count := 0
	for {
		start := i
		for i < len(s) && space(s[i]) {
			i++
		}
		if i >= len(s) {
			return 0, name, false, fmt.Errorf("<%s is not closed", name)
		}
		if s[i] == '>' || s[i] == '/' {
			break
		}
		if i == start {
			return 0, name, false, fmt.Errorf("attributes of <%s> are not apart", name)
		}
		from := i
		for i < len(s) && nameByte(s[i]) {
			i++
		}
		attribute := s[from:i]
		for i < len(s) && space(s[i]) {
			i++
		}
		if attribute == "" || i >= len(s) || s[i] != '=' {
			return 0, name, false, fmt.Errorf("<%s> has an attribute without value", name)
		}
		i++
		for i < len(s) && space(s[i]) {
			i++
		}
		if i >= len(s) || s[i] != '"' && s[i] != '\'' {
			return 0, name, false, fmt.Errorf("the value of %s in <%s> has no quotes", clip(attribute), name)
		}
		end := strings.IndexByte(s[i+1:], s[i])
		if end < 0 {
			return 0, name, false, fmt.Errorf("the value of %s in <%s> is not closed", clip(attribute), name)
		}
		value := s[i+1 : i+1+end]
		i += end + 2
		if strings.IndexByte(value, '<') >= 0 {
			return 0, name, false, fmt.Errorf("the value of %s in <%s> has a '<'", clip(attribute), name)
		}
		if err := checkEntities(value); err != nil {
			return 0, name, false, err
		}
		for _, a := range seen[:min(count, len(seen))] {
			if a == attribute {
				return 0, name, false, fmt.Errorf("<%s> has %s twice", name, clip(attribute))
			}
		}
		if count < len(seen) {
			seen[count] = attribute
		}
		count++
		switch {
		case attribute == "xmlns":
			namespace = value
			if value != xhtmlNamespace {
				return 0, name, false, fmt.Errorf("the namespace is %s, not that of XHTML", clip(value))
			}
		case strings.HasPrefix(attribute, "xmlns:"):
		case !attributes[attribute]:
			return 0, name, false, fmt.Errorf("attribute %s is not allowed in <%s>", clip(attribute), name)
		case scripted(attribute, value):
			return 0, name, false, fmt.Errorf("attribute %s of <%s> runs a script", attribute, name)
		}
	}
	if root && namespace == "" {
		return 0, name, false, fmt.Errorf("the div does not name the XHTML namespace")
	}
	if s[i] == '/' {
		closed = true
		i++
	}
	if i >= len(s) || s[i] != '>' {
		return 0, name, false, fmt.Errorf("<%s is not closed", name)
	}
	return i + 1, name, closed, nil
}

func scripted(attribute, value string) bool {
	if attribute != "href" && attribute != "src" {
		return false
	}
	// As a browser reads it: references resolved, control characters dropped.
	value = strings.Map(func(r rune) rune {
		if r <= ' ' {
			return -1
		}
		return r
	}, html.UnescapeString(value))
	scheme, _, ok := strings.Cut(strings.ToLower(value), ":")
	return ok && (scheme == "javascript" || scheme == "vbscript")
}

// checkEntities checks that every & starts a character reference.
func checkEntities(s string) error {
	for {
		i := strings.IndexByte(s, '&')
		if i < 0 {
			return nil
		}
		s = s[i+1:]
		end := strings.IndexByte(s, ';')
		if end < 1 || end > 32 {
			return fmt.Errorf("'&' starts no character reference")
		}
		for j := range end {
			if c := s[j]; !letter(c) && !digit(c) && !(c == '#' && j == 0) {
				return fmt.Errorf("'&%s;' is no character reference", clip(s[:end]))
			}
		}
		s = s[end:]
	}
}

// clip bounds text of a narrative in a message.
func clip(s string) string {
	if len(s) > 40 {
		s = strings.ToValidUTF8(s[:40], "") + "…"
	}
	return s
}
