package narrative

import (
	"errors"
	"fmt"
	"html"
	"slices"
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

// A reader reads a div.
type reader struct {
	text    string   // from the place that is read
	open    []string // names of the elements that are open
	content bool     // there is something other than white space
}

var errNotOneDiv = errors.New("the narrative must be one div element")

// check reads the div and reports whether it contains only white space. The error describes a breach of txt-1.
func check(s string) (empty bool, err error) {
	r := &reader{text: strings.TrimSpace(s)}
	if r.text == "" {
		return false, errNotOneDiv
	}
	for r.text != "" {
		if err := r.readText(); err != nil {
			return false, err
		}
		if r.text == "" {
			break
		}
		if err := r.readMarkup(); err != nil {
			return false, err
		}
	}
	if len(r.open) > 0 {
		return false, fmt.Errorf("<%s> is not closed", r.open[len(r.open)-1])
	}
	return !r.content, nil
}

// readText reads text up to the next '<', or to the end.
func (r *reader) readText() error {
	text := r.text
	if lt := strings.IndexByte(text, '<'); lt >= 0 {
		text = text[:lt]
	}
	if len(r.open) == 0 && strings.TrimSpace(text) != "" {
		return errNotOneDiv
	}
	r.content = r.content || strings.TrimSpace(html.UnescapeString(text)) != ""
	r.text = r.text[len(text):]
	return checkEntities(text)
}

// readMarkup reads a tag, a comment or a CDATA section.
func (r *reader) readMarkup() error {
	switch {
	case strings.HasPrefix(r.text, "<!--"):
		_, err := r.readUntil("<!--", "-->", "a comment is not closed")
		return err
	case strings.HasPrefix(r.text, "<![CDATA["):
		text, err := r.readUntil("<![CDATA[", "]]>", "a CDATA section is not closed")
		r.content = r.content || strings.TrimSpace(text) != ""
		return err
	case strings.HasPrefix(r.text, "<!"), strings.HasPrefix(r.text, "<?"):
		return errors.New("declarations and processing instructions are not allowed")
	case strings.HasPrefix(r.text, "</"):
		return r.readEndTag()
	}
	return r.readStartTag()
}

// readUntil reads markup between two marks. It fails with the reason if the end is missing.
func (r *reader) readUntil(begin, end, reason string) (text string, err error) {
	at := strings.Index(r.text, end)
	if at < 0 {
		return "", errors.New(reason)
	}
	text = r.text[min(len(begin), at):at]
	r.text = r.text[at+len(end):]
	return text, nil
}

func (r *reader) readEndTag() error {
	text, err := r.readUntil("</", ">", "a tag is not closed")
	if err != nil {
		return err
	}
	name := strings.TrimSpace(text)
	if len(r.open) == 0 || r.open[len(r.open)-1] != name {
		return fmt.Errorf("</%s> closes nothing that is open", clip(name))
	}
	r.open = r.open[:len(r.open)-1]
	return r.checkEnd()
}

func (r *reader) readStartTag() error {
	n, name, closed, err := checkTag(r.text, len(r.open) == 0)
	if err != nil {
		return err
	}
	r.text = r.text[n:]
	r.content = r.content || name == "img"
	if closed {
		return r.checkEnd()
	}
	if r.open = append(r.open, name); len(r.open) > maxDepth {
		return fmt.Errorf("elements are nested deeper than %d", maxDepth)
	}
	return nil
}

// checkEnd checks that nothing follows the end of the outermost element.
func (r *reader) checkEnd() error {
	if len(r.open) == 0 && strings.TrimSpace(r.text) != "" {
		return errNotOneDiv
	}
	return nil
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

func nameByte(c byte) bool { return letter(c) || digit(c) || c == ':' || c == '-' || c == '.' }

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// A tag is a start tag that is being read.
type tag struct {
	text string // from its '<' on
	at   int    // the next byte
	name string
	// seen are the names of the first attributes. A tag with more of them is not checked for later repetitions.
	seen       [16]string
	attributes int
	namespace  string // the value of xmlns
}

// checkTag reads a start tag and returns its length.
func checkTag(text string, root bool) (n int, name string, closed bool, err error) {
	t := &tag{text: text, at: 1}
	t.name = t.readName()
	if err := t.checkElement(root); err != nil {
		return 0, t.name, false, err
	}
	for {
		attribute, value, more, err := t.readAttribute()
		if err == nil && more {
			err = t.checkAttribute(attribute, value)
		}
		if err != nil {
			return 0, t.name, false, err
		}
		if !more {
			break
		}
	}
	if root && t.namespace == "" {
		return 0, t.name, false, fmt.Errorf("the div does not name the XHTML namespace")
	}
	closed = t.skip('/')
	if !t.skip('>') {
		return 0, t.name, false, fmt.Errorf("<%s is not closed", t.name)
	}
	return t.at, t.name, closed, nil
}

// readName reads the name of an element or attribute, "" if there is none.
func (t *tag) readName() string {
	from := t.at
	for t.at < len(t.text) && nameByte(t.text[t.at]) {
		t.at++
	}
	return t.text[from:t.at]
}

// skipSpace skips white space, and reports whether there was some.
func (t *tag) skipSpace() bool {
	from := t.at
	for t.at < len(t.text) && space(t.text[t.at]) {
		t.at++
	}
	return t.at > from
}

// skip skips a byte, and reports whether it was there.
func (t *tag) skip(c byte) bool {
	if t.at >= len(t.text) || t.text[t.at] != c {
		return false
	}
	t.at++
	return true
}

// readAttribute reads the next attribute. It returns false at the end of the tag.
func (t *tag) readAttribute() (attribute, value string, more bool, err error) {
	apart := t.skipSpace()
	if t.at >= len(t.text) {
		return "", "", false, fmt.Errorf("<%s is not closed", t.name)
	}
	if c := t.text[t.at]; c == '>' || c == '/' {
		return "", "", false, nil
	}
	if !apart {
		return "", "", false, fmt.Errorf("attributes of <%s> are not apart", t.name)
	}
	attribute = t.readName()
	t.skipSpace()
	if attribute == "" || !t.skip('=') {
		return "", "", false, fmt.Errorf("<%s> has an attribute without value", t.name)
	}
	t.skipSpace()
	from := t.at + 1
	if !t.skip('"') && !t.skip('\'') {
		return "", "", false, fmt.Errorf("the value of %s in <%s> has no quotes", clip(attribute), t.name)
	}
	end := strings.IndexByte(t.text[from:], t.text[from-1])
	if end < 0 {
		return "", "", false, fmt.Errorf("the value of %s in <%s> is not closed", clip(attribute), t.name)
	}
	t.at = from + end + 1
	return attribute, t.text[from : from+end], true, nil
}

// checkElement checks that a narrative may have the element.
func (t *tag) checkElement(root bool) error {
	switch {
	case root && t.name != "div":
		return fmt.Errorf("the narrative must be one div element, found <%s>", clip(t.name))
	case !elements[t.name]:
		return fmt.Errorf("element <%s> is not allowed", clip(t.name))
	}
	return nil
}

// checkAttribute checks that a narrative may have the attribute with its value.
func (t *tag) checkAttribute(attribute, value string) error {
	if strings.IndexByte(value, '<') >= 0 {
		return fmt.Errorf("the value of %s in <%s> has a '<'", clip(attribute), t.name)
	}
	if err := checkEntities(value); err != nil {
		return err
	}
	if slices.Contains(t.seen[:min(t.attributes, len(t.seen))], attribute) {
		return fmt.Errorf("<%s> has %s twice", t.name, clip(attribute))
	}
	if t.attributes < len(t.seen) {
		t.seen[t.attributes] = attribute
	}
	t.attributes++
	switch {
	case attribute == "xmlns":
		t.namespace = value
		if value != xhtmlNamespace {
			return fmt.Errorf("the namespace is %s, not XHTML's", clip(value))
		}
	case strings.HasPrefix(attribute, "xmlns:"):
	case !attributes[attribute]:
		return fmt.Errorf("attribute %s is not allowed in <%s>", clip(attribute), t.name)
	case scripted(attribute, value):
		return fmt.Errorf("attribute %s of <%s> runs a script", attribute, t.name)
	}
	return nil
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
