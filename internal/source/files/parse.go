package files

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubeyaml "sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/strict"
	"github.com/sluice-proxy/sluice/internal/text"
)

// mostProblems is how many problems of a file are reported one by one.
const mostProblems = 10

// reader turns the text of files into values.
type reader struct {
	convert  convert.Converter
	nodeName string
	limits   Limits
}

type object struct {
	key   key
	value any // nil: without meaning to a proxy
}

// content has the objects and problems of a file.
type content struct {
	objects  []object // each key once
	problems []route.Problem
	more     int  // problems that are only counted
	isBroken bool // the file cannot be read whole, so that no object counts
}

// report returns the problems of a file to report: the first ones, and the number of the others.
func (c content) report(path string) []route.Problem {
	if c.more == 0 {
		return c.problems
	}
	return append(slices.Clip(c.problems), route.Problem{
		Object: path, Reason: "and " + text.Count(c.more, "more problem"),
	})
}

// parser reads one file.
type parser struct {
	reader
	content

	name  string
	seen  map[key]bool
	units int // documents and items so far
}

// parse parses a file; name is for messages. It ends early if the context ends.
func (r reader) parse(ctx context.Context, name string, data []byte) content {
	p := &parser{reader: r, name: name, seen: map[key]bool{}}
	if err := checkEncoding(data); err != nil {
		p.fail(value{}, route.Problem{Reason: err.Error()})
		return p.content
	}
	text := bytes.TrimPrefix(data, []byte("\ufeff"))
	if bytes.Contains(text, []byte("\r\n")) {
		text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	}
	p.documents(ctx, text)
	return p.content
}

// documents reads the documents of a file.
func (p *parser) documents(ctx context.Context, text []byte) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for line := 1; ctx.Err() == nil; {
		doc, err := documents.Read()
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil: // the reader drops the text before the separator
			p.fail(value{}, route.Problem{Reason: fmt.Sprintf("line %d or later: %v; write it in the next line", line, err)})
			return
		case !p.document(doc, line), p.isBroken && len(p.problems) == mostProblems: // no later document can help
			return
		}
		line += bytes.Count(doc, []byte("\n")) + 1 // the reader drops the separator
	}
}

// document reads a document. It returns false if the file has too many.
func (p *parser) document(text []byte, line int) bool {
	if bytes.HasPrefix(text, []byte("---")) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
		line++
	}
	if len(contentOf(text)) == 0 {
		return true
	}
	d := &document{text: text, line: line}
	values, err := d.values(p.limits.DocumentBytes)
	if err != nil {
		p.fail(value{}, route.Problem{Reason: err.Error()})
	}
	for _, v := range values {
		if !p.object(v, header{}) {
			return false
		}
	}
	return true
}

func (p *parser) add(v value, problem route.Problem) {
	if len(p.problems) == mostProblems {
		p.more++
		return
	}
	where := p.name
	if v.document != nil {
		where += fmt.Sprintf(": line %d",
			v.document.lineOf(strings.Trim(v.path+"."+problem.Field, "."), p.limits.DocumentBytes))
	}
	problem.Object = strings.TrimSuffix(where+": "+problem.Object, ": ")
	p.problems = append(p.problems, problem)
}

// fail adds a problem for which the file cannot be read whole.
func (p *parser) fail(v value, problem route.Problem) {
	p.isBroken = true
	p.add(v, problem)
}

// Limits bound the memory and time that the input of a Source takes. Input above a limit is reported, not read.
type Limits struct {
	FileBytes     int64 // of one file, or of the standard input
	DocumentBytes int64 // of one YAML document, or of one object of a list
	Objects       int   // of all files, and of documents and items of one file
}

// DaemonLimits are for a process that runs on a node.
func DaemonLimits() Limits {
	return Limits{FileBytes: 32 << 20, DocumentBytes: 8 << 20, Objects: 60_000}
}

// CommandLimits are for a command that reads once and ends.
func CommandLimits() Limits {
	return Limits{FileBytes: 512 << 20, DocumentBytes: 64 << 20, Objects: 1_000_000}
}

const (
	maxListDepth = 5    // levels of Lists in Lists
	maxDepth     = 1000 // levels of a document with aliases

	// bytesPerValue is the least number of bytes of a YAML document for each of its values, on the average of a document
	// of the largest size: a value takes 200 bytes of memory, however short it is.
	bytesPerValue = 16
)

// checkEncoding returns an error for text that is not in UTF-8, which Kubernetes' readers would misread.
func checkEncoding(data []byte) error {
	switch {
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")),
		bytes.IndexByte(data, 0) >= 0:
		return errors.New("the text is in UTF-16 or UTF-32, or is not text; save it in UTF-8")
	case !utf8.Valid(data):
		line := 1 + bytes.Count(data[:bytes.IndexRune(data, utf8.RuneError)], []byte("\n"))
		return fmt.Errorf("line %d: the text is not in UTF-8", line)
	}
	return nil
}

type document struct {
	text []byte
	line int // of the file, where the text begins; the first is 1

	lines *strict.Lines // nil: not needed so far
}

// lineOf returns the line of a field in the file, or the first line of a document above the limits.
func (d *document) lineOf(path string, limit int64) int {
	if d.checkSize(limit) != nil {
		return d.line
	}
	if d.lines == nil {
		lines := strict.NewLines(d.text)
		d.lines = &lines
	}
	line, _ := d.lines.Find(path)
	return d.line + line - 1
}

// value is a value in JSON, and its place in a file.
type value struct {
	json     []byte
	document *document // nil: in no document
	path     string    // in the document: "items[1]"
}

// values returns the document as JSON: the value of a YAML document, or each of the values of a JSON document.
func (d *document) values(limit int64) ([]value, error) {
	inJSON, err := d.jsonValues()
	if err == nil {
		return inJSON, nil
	}
	value, inYAML := d.yamlValues(limit)
	if inYAML != nil && regexp.MustCompile(`^\s*\{\s*"`).Match(d.text) {
		return nil, err
	}
	return value, inYAML
}

func (d *document) yamlValues(limit int64) ([]value, error) {
	if err := d.checkSize(limit); err != nil {
		return nil, fmt.Errorf("line %d: %w; several documents, or a list in JSON, may be larger", d.line, err)
	}
	if err := d.checkYAML(limit); err != nil {
		return nil, err
	}
	converted, err := kubeyaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, d.yamlError(err)
	}
	return []value{{json: converted, document: d}}, nil
}

func (d *document) jsonValues() ([]value, error) {
	var values []value
	line, counted := d.line, 0
	dec := json.NewDecoder(bytes.NewReader(d.text))
	for {
		var text json.RawMessage
		err := dec.Decode(&text)
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", d.lineAt(int(dec.InputOffset())), err)
		}
		begin := int(dec.InputOffset()) - len(text)
		line += bytes.Count(d.text[counted:begin], []byte("\n"))
		counted = begin
		values = append(values, value{json: text, document: &document{text: text, line: line}})
	}
}

// lineAt returns the line of the file at an offset of the document.
func (d *document) lineAt(offset int) int { return d.line + bytes.Count(d.text[:offset], []byte("\n")) }

// checkYAML returns an error for a document with too many aliases, or of which the reader would lose a part.
func (d *document) checkYAML(limit int64) error {
	if i := bytes.IndexByte(d.text, '\r'); i >= 0 {
		return fmt.Errorf("line %d: a CR without LF; the text after it would be lost; "+
			"save the file with LF or CR LF line ends", d.lineAt(i))
	}
	if at := d.lostAt(); at >= 0 {
		return fmt.Errorf("line %d: the text after this mark would be lost; separate documents by a line with --- alone",
			d.lineAt(at))
	}
	hasAliases := bytes.IndexByte(d.text, '&') >= 0 && bytes.IndexByte(d.text, '*') >= 0
	if first := contentOf(d.text)[0]; !hasAliases && !bytes.ContainsRune([]byte("{&!?"), rune(first)) {
		return nil // no text can follow a mapping that is not in braces
	}
	var root, rest yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(d.text))
	left := limit
	if err := dec.Decode(&root); err != nil {
		return d.yamlError(err)
	}
	switch {
	case !errors.Is(dec.Decode(&rest), io.EOF):
		return fmt.Errorf("line %d or later: the text after the end of the value would be lost", d.line)
	case hasAliases && !fits(&root, &left, 0):
		return fmt.Errorf("line %d: with its aliases replaced the document has more than %s, or %d levels, "+
			"which is the limit", d.line, text.Bytes(limit), maxDepth)
	}
	return nil
}

// fits reports whether a value with its aliases replaced has no more bytes than are left, and subtracts them.
func fits(n *yaml.Node, left *int64, depth int) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	*left -= int64(len(n.Value)) + bytesPerValue
	for i := 0; i < len(n.Content) && *left >= 0 && depth < maxDepth; i++ {
		if !fits(n.Content[i], left, depth+1) {
			return false
		}
	}
	return *left >= 0 && depth < maxDepth
}

// lostAt returns the offset of a mark between documents that only the YAML parser knows; -1: there is none.
func (d *document) lostAt() int {
	if !bytes.Contains(d.text, []byte("---")) && !bytes.Contains(d.text, []byte("...")) {
		return -1
	}
	marks := regexp.MustCompile(`(?:^|[\n\x{85}\x{2028}\x{2029}])\x{feff}?(?:---|\.\.\.)(?:[\s\x{85}\x{2028}\x{2029}]|$)`)
	for _, at := range marks.FindAllIndex(d.text, -1) {
		isEnd := bytes.HasSuffix(bytes.TrimSpace(d.text[at[0]:at[1]]), []byte("..."))
		if !isEnd || len(contentOf(d.text[at[1]:])) > 0 {
			return at[1] - 1
		}
	}
	return -1
}

// contentOf returns the text behind empty lines and comments at its start.
func contentOf(text []byte) []byte {
	text = bytes.TrimSpace(text)
	for len(text) > 0 && text[0] == '#' {
		end := bytes.IndexAny(text, lineEnds)
		if end < 0 {
			return nil
		}
		text = bytes.TrimLeft(text[end:], " \t"+lineEnds)
	}
	return text
}

// lineEnds are the line ends of YAML 1.1.
const lineEnds = "\n\r\u0085\u2028\u2029"

// yamlError returns an error of the YAML parser with the lines of the file. The parser names no line for the first
// line and for errors of the whole document.
func (d *document) yamlError(err error) error {
	message := strings.TrimPrefix(oneLine(err.Error()), "error converting YAML to JSON: ")
	placed := regexp.MustCompile(`line \d+`).ReplaceAllStringFunc(message, func(place string) string {
		line, _ := strconv.Atoi(place[len("line "):]) // the text has digits only
		return fmt.Sprintf("line %d", d.line+line-1)
	})
	if !strings.Contains(placed, "line ") {
		placed = fmt.Sprintf("line %d or later: %s", d.line, placed)
	}
	return errors.New(placed)
}

func (d *document) checkSize(limit int64) error { return checkSize("the document", d.text, limit) }

// checkSize returns an error for a text that is too long, or takes as much memory by its number of values.
func checkSize(what string, data []byte, limit int64) error {
	if size := int64(len(data)); size > limit {
		return fmt.Errorf("%s has %s; the limit is %s", what, text.Bytes(size), text.Bytes(limit))
	}
	values := 1
	for _, mark := range []string{",", ":", "[", "{", "?", "- ", "-\n"} { // an estimate from above
		values += bytes.Count(data, []byte(mark))
	}
	if most := int(limit / bytesPerValue); values > most {
		return fmt.Errorf("%s has %s; the limit is %d", what, text.Count(values, "value"), most)
	}
	return nil
}

// oneLine returns text without line ends.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
