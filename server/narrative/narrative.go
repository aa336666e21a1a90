package narrative

import (
	"fmt"
	"html"
	"strconv"
	"strings"
)

// The allowed elements and attributes of a narrative: XHTML that formats text, and nothing that runs, loads or
// submits.
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

// Error describes a fault of a narrative and names the broken rule.
type Error struct {
	Rule   string // txt-1 or txt-2
	Reason string
}

func (e *Error) Error() string { return e.Reason }

// Check checks a narrative's div: well-formed, in the XHTML namespace, with formatting
// elements and attributes only (txt-1), and with content that is no white space
// (txt-2). It fails with an *Error.
// Spec: https://hl7.org/fhir/R4/narrative.html#xhtml.
func Check(div string) error {
	empty, err := check(div)
	switch {
	case err != nil:
		return &Error{"txt-1", err.Error()}
	case empty:
		return &Error{"txt-2", "the div has no content"}
	}
	return nil
}

// check reads the div and reports whether it contains only white space. The error describes a breach of txt-1.
func check(s string) (empty bool, err error) {
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
			return false, fmt.Errorf("the narrative must be one div element")
		}
		if !content && strings.TrimSpace(html.UnescapeString(text)) != "" {
			content = true
		}
		if err := checkEntities(text); err != nil {
			return false, err
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
				return false, fmt.Errorf("a comment is not closed")
			}
			i += end + 3
		case strings.HasPrefix(rest, "<!") || strings.HasPrefix(rest, "<?"):
			if strings.HasPrefix(rest, "<![CDATA[") {
				end := strings.Index(rest, "]]>")
				if end < 0 {
					return false, fmt.Errorf("a CDATA section is not closed")
				}
				content = content || strings.TrimSpace(rest[len("<![CDATA["):end]) != ""
				i += end + 3
				continue
			}
			return false, fmt.Errorf("declarations and processing instructions are not allowed")
		case strings.HasPrefix(rest, "</"):
			end := strings.IndexByte(rest, '>')
			if end < 0 {
				return false, fmt.Errorf("a tag is not closed")
			}
			name := strings.TrimSpace(rest[2:end])
			if len(open) == 0 || open[len(open)-1] != name {
				return false, fmt.Errorf("</%s> closes nothing that is open", clip(name))
			}
			open = open[:len(open)-1]
			i += end + 1
			if len(open) == 0 && strings.TrimSpace(s[i:]) != "" {
				return false, fmt.Errorf("the narrative must be one div element")
			}
		default:
			n, name, closed, err := checkTag(rest, len(open) == 0)
			if err != nil {
				return false, err
			}
			if name == "img" {
				content = true
			}
			if !closed {
				if open = append(open, name); len(open) > maxDepth {
					return false, fmt.Errorf("elements are nested deeper than %d", maxDepth)
				}
			}
			i += n
			if closed && len(open) == 0 && strings.TrimSpace(s[i:]) != "" {
				return false, fmt.Errorf("the narrative must be one div element")
			}
		}
	}
	switch {
	case len(open) > 0:
		return false, fmt.Errorf("<%s> is not closed", open[len(open)-1])
	case s == "":
		return false, fmt.Errorf("the narrative must be one div element")
	}
	return !content, nil
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
				return 0, name, false, fmt.Errorf("the namespace is %s, not XHTML's", clip(value))
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

// checkEntities checks that every & starts a reference to a character, or to one of
// the entities that XML itself has: the entities of HTML (&nbsp;) are declared nowhere.
// Spec: https://www.w3.org/TR/xml/#sec-predefined-ent, https://www.w3.org/TR/xml/#wf-Legalchar.
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
		switch name := s[:end]; {
		case name == "amp", name == "lt", name == "gt", name == "quot", name == "apos":
		case name[0] != '#':
			return fmt.Errorf("'&%s;' is no entity of XML: expected amp, lt, gt, quot, apos or a character reference such as &#160;", clip(name))
		case !character(name[1:]):
			return fmt.Errorf("'&%s;' is no character reference", clip(name))
		}
		s = s[end:]
	}
}

// character reports whether digits, or x and hexadecimal digits, are the number of a
// character that XML allows.
func character(number string) bool {
	base := 10
	if hexadecimal, ok := strings.CutPrefix(number, "x"); ok {
		base, number = 16, hexadecimal
	}
	n, err := strconv.ParseUint(number, base, 32)
	return err == nil && (n == 9 || n == 10 || n == 13 ||
		n >= 0x20 && n < 0xD800 || n >= 0xE000 && n < 0xFFFE || n >= 0x10000 && n <= 0x10FFFF)
}

// clip bounds text of a narrative in a message.
func clip(s string) string {
	if len(s) > 40 {
		s = strings.ToValidUTF8(s[:40], "") + "…"
	}
	return s
}
