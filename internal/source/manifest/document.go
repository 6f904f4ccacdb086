package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2" // the version that kubectl reads YAML with

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// toJSON returns the document as JSON, and the problems of YAML keys that are
// repeated, of which the last one counts. Lines in errors are those of the file.
func (d document) toJSON(limit int64) (converted []byte, repeated []route.Problem, err error) {
	converted = d.text
	if !d.isJSON {
		converted, repeated, err = d.yamlToJSON(limit)
	}
	if err != nil {
		return nil, nil, err
	}
	if depth := depthOf(converted); depth > maxDepth {
		return nil, nil, tooDeep(depth)
	}
	return converted, repeated, nil
}

// depthOf returns how many levels of objects and lists a JSON text has; at most one
// more than maxDepth.
func depthOf(text []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(text) && deepest <= maxDepth; i++ {
		switch b := text[i]; {
		case b == '"':
			quoted = !quoted
		case quoted && b == '\\':
			i++
		case quoted:
		case b == '{', b == '[':
			depth++
			deepest = max(deepest, depth)
		case b == '}', b == ']':
			depth--
		}
	}
	return deepest
}

// checkSize returns an error if the document is too large to be parsed as a whole.
func (d document) checkSize(limit int64) error { return checkSize("the document", d.text, limit) }

// checkSize returns an error if a text is longer than the limit or has so many
// values that it takes as much memory as a longer one.
func checkSize(what string, data []byte, limit int64) error {
	if size := int64(len(data)); size > limit {
		return tooLarge(what, size, limit)
	}
	if values, most := countValues(data), int(limit/bytesPerValue); values > most {
		return fmt.Errorf("%s has %s; the limit is %d", what, text.Count(values, "value"), most)
	}
	return nil
}

// countValues estimates from above how many values a YAML or JSON text has.
func countValues(data []byte) int {
	n := 1
	for _, mark := range []string{",", ":", "[", "{", "?", "- ", "-\n"} {
		n += bytes.Count(data, []byte(mark))
	}
	return n
}

// yamlToJSON converts a YAML document, as kubectl does. Unlike kubectl it returns an
// error if text follows the document.
func (d document) yamlToJSON(limit int64) (converted []byte, repeated []route.Problem, err error) {
	if err := d.checkSize(limit); err != nil {
		return nil, nil, err
	}
	value, err := decodeYAML(d.text, (*yaml.Decoder).SetStrict)
	if e, ok := errors.AsType[*yaml.TypeError](err); ok {
		repeated = d.repeatedKeys(e.Errors)
		value, err = decodeYAML(d.text, func(*yaml.Decoder, bool) {})
	}
	if err != nil && d.notJSON != nil && looksLikeJSON(d.text) {
		return nil, nil, d.jsonError()
	}
	if err != nil {
		return nil, nil, d.yamlError(err)
	}
	c := converter{left: math.MaxInt64}
	if bytes.IndexByte(d.text, '&') >= 0 && bytes.IndexByte(d.text, '*') >= 0 {
		c.left = limit
	}
	if value, err = c.convert(value); err != nil {
		return nil, nil, err
	}
	if c.left < 0 {
		return nil, nil, fmt.Errorf("with its aliases replaced the document has more than %s, which is the limit", text.Bytes(limit))
	}
	converted, err = json.Marshal(value)
	return converted, repeated, err
}

// decodeYAML decodes a document, strictly if setStrict does so. The decoder refuses
// aliases of what they are a part of, and documents that consist mostly of aliases.
func decodeYAML(text []byte, setStrict func(*yaml.Decoder, bool)) (any, error) {
	var value, rest any
	dec := yaml.NewDecoder(bytes.NewReader(text))
	setStrict(dec, true)
	err := dec.Decode(&value)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if _, is := errors.AsType[*yaml.TypeError](err); err != nil && !is {
		return nil, err
	}
	switch after := dec.Decode(&rest); {
	case errors.Is(after, io.EOF):
		return value, err
	case after != nil:
		return nil, after
	default:
		return nil, errors.New("there is more than one document")
	}
}

// repeatedKeys returns the problems of keys that the strict decoder reports.
func (d document) repeatedKeys(reports []string) []route.Problem {
	var out []route.Problem
	form := regexp.MustCompile(`^line (\d+): key (.+) already set in map$`)
	for _, report := range reports[:min(len(reports), mostProblems)] {
		p := route.Problem{Reason: oneLine(d.relocate(report))}
		if found := form.FindStringSubmatch(report); found != nil {
			if name, err := strconv.Unquote(found[2]); err == nil {
				found[2] = name
			}
			p.Field = shorten(found[2])
			p.Reason = d.relocate("repeated in line " + found[1] + "; the last value is used")
		}
		out = append(out, p)
	}
	if more := len(reports) - len(out); more > 0 {
		out = append(out, route.Problem{Reason: text.Count(more, "more key") + " repeated"})
	}
	return out
}

// converter converts YAML values to JSON values: the keys of objects become strings.
type converter struct {
	left int64 // how many more bytes the limit allows, with aliases replaced
}

// convert converts a value. Once the limit is exceeded it converts nothing more.
func (c *converter) convert(value any) (any, error) {
	c.left -= bytesPerValue
	if c.left < 0 {
		return nil, nil
	}
	var err error
	switch v := value.(type) {
	case string:
		c.left -= int64(len(v))
	case map[any]any:
		object := make(map[string]any, len(v))
		for key, inner := range v {
			name, err := keyText(key)
			if err != nil {
				return nil, err
			}
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("the key %s is repeated, in different forms", strconv.Quote(shorten(name)))
			}
			c.left -= int64(len(name))
			if object[name], err = c.convert(inner); err != nil {
				return nil, err
			}
		}
		return object, nil
	case []any:
		for i := 0; i < len(v) && err == nil; i++ {
			v[i], err = c.convert(v[i])
		}
	}
	return value, err
}

// keyText returns a key as a string.
func keyText(key any) (string, error) {
	switch k := key.(type) {
	case string:
		return k, nil
	case int, int64, uint64, bool:
		return fmt.Sprint(k), nil
	case float64:
		return strconv.FormatFloat(k, 'g', -1, 32), nil
	}
	return "", fmt.Errorf("a key of an object is a %T; expected a string", key)
}

func looksLikeJSON(text []byte) bool {
	_, rest, _ := bytes.Cut(text, []byte("{"))
	return bytes.HasPrefix(bytes.TrimSpace(rest), []byte(`"`))
}

// jsonError returns the reason why text that looks like JSON is not valid JSON, with
// the line of the file.
func (d document) jsonError() error {
	at, reason := len(bytes.TrimSpace(d.text)), d.notJSON
	if e, ok := errors.AsType[*json.SyntaxError](d.notJSON); ok {
		at = max(0, bytes.IndexByte(d.text, '{')) + int(e.Offset)
		if strings.Contains(e.Error(), "exceeded max depth") {
			return fmt.Errorf("objects and lists are nested more than 10000 levels deep; the limit is %d", maxDepth)
		}
	}
	if errors.Is(reason, io.ErrUnexpectedEOF) {
		reason = errors.New("the text ends in the middle of a value")
	}
	return fmt.Errorf("read JSON: line %d: %w", d.line+countLines(d.text[:min(at, len(d.text))]), reason)
}

// yamlError returns the reason why text is not YAML, with the line of the file. The
// parser names no line for the first line and for errors of the whole document.
func (d document) yamlError(err error) error {
	message := d.relocate(oneLine(err.Error()))
	if !strings.Contains(message, "line ") {
		return fmt.Errorf("read YAML: in or after line %d: %s", d.line, message)
	}
	return errors.New("read YAML: " + message)
}

// relocate replaces the lines of the document in a message by those of the file.
func (d document) relocate(message string) string {
	return regexp.MustCompile(`line \d+`).ReplaceAllStringFunc(message, func(place string) string {
		line, err := strconv.Atoi(place[len("line "):])
		if err != nil {
			return place
		}
		return fmt.Sprintf("line %d", d.line+line-1)
	})
}
