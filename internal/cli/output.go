package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/text"
)

// askTimeout bounds the wait for an answer of the daemon.
const askTimeout = 30 * time.Second

// format is how answers are printed.
type format struct {
	name                string
	begin, between, end string // text around answers
	after               string // text after each answer
	none                string // in place of begin and end, if there is no answer
	wide, bare          bool   // of a table; bare: without titles

	encode func(json.RawMessage) ([]byte, error) // nil: a form for people

	// parse returns encode of a format with an argument, as in jsonpath=TEMPLATE. nil: it has none.
	parse func(argument string) (encode func(json.RawMessage) ([]byte, error), err error)
	whole bool // encode gets a list as one object
}

// objectFormats are the formats of a command whose answer is one object, listFormats of one whose answer is a list, and
// streamFormats of one that prints answers as they come. The first is the default.
func objectFormats() []format {
	return []format{
		{name: "text"},
		{name: "json", end: "\n", encode: asJSON("")},
		{name: "yaml", encode: asYAML("%s")},
		{name: jsonPath, parse: asPath},
	}
}

func tableFormats() []format { return []format{{name: "table"}, {name: "wide", wide: true}} }

func listFormats() []format {
	asItems := format{
		name: "json", encode: asJSON("    "),
		begin: "{\n  \"items\": [\n    ", between: ",\n    ", end: "\n  ]\n}\n", none: "{\n  \"items\": []\n}\n",
	}
	asYAMLItems := format{name: "yaml", begin: "items:\n", none: "items: []\n", encode: asYAML("[%s]")}
	return append(tableFormats(), asItems, asYAMLItems, format{name: jsonPath, parse: asPath, whole: true})
}

func streamFormats() []format {
	asLine := func(answer json.RawMessage) ([]byte, error) { return answer, nil }
	return []format{
		{name: "json", after: "\n", encode: asLine},
		{name: "yaml", between: "---\n", encode: asYAML("%s")},
		{name: jsonPath, after: "\n", parse: asPath},
	}
}

// nameFormat prints which Services answers are about, each once.
func nameFormat() format {
	seen := map[string]bool{}
	return format{name: "name", encode: func(answer json.RawMessage) ([]byte, error) {
		var i item
		if err := admin.Decode(answer, &i); err != nil || seen[i.service()] {
			return nil, err
		}
		seen[i.service()] = true
		return []byte(i.service() + "\n"), nil
	}}
}

// asJSON indents an answer, its first line less than the others.
func asJSON(indent string) func(json.RawMessage) ([]byte, error) {
	return func(answer json.RawMessage) ([]byte, error) {
		var b bytes.Buffer
		err := json.Indent(&b, answer, indent, "  ")
		return b.Bytes(), err
	}
}

// asYAML returns an answer, or a list with it, as YAML.
func asYAML(form string) func(json.RawMessage) ([]byte, error) {
	return func(answer json.RawMessage) ([]byte, error) { return yaml.JSONToYAML(fmt.Appendf(nil, form, answer)) }
}

// output is the pflag.Value of --output.
type output struct {
	format

	formats []format
	text    string // as set
}

func newOutput(formats []format) *output { return &output{formats[0], formats, formats[0].name} }

// register adds the flag to a command.
func (o *output) register(cmd *cobra.Command, fs *pflag.FlagSet) {
	fs.VarP(o, "output", "o", "how to print: "+o.usage())
	complete(cmd, "output", o.names())
}

func (o *output) names() (names []string) {
	for _, f := range o.formats {
		name := f.name
		if f.parse != nil {
			name += "="
		}
		names = append(names, name)
	}
	return names
}

func (o *output) usage() string {
	return strings.ReplaceAll(strings.Join(o.names(), ", "), "=", "=TEMPLATE")
}

func (o *output) String() string { return o.text }

func (o *output) Type() string { return "string" }

func (o *output) Set(s string) (err error) {
	name, argument, _ := strings.Cut(s, "=")
	if argument != "" {
		name += "="
	}
	i := slices.Index(o.names(), name)
	if i < 0 {
		return fmt.Errorf("want %s", o.usage())
	}
	f := o.formats[i]
	if f.parse != nil {
		f.encode, err = f.parse(argument)
	}
	o.format, o.text = f, s
	return err
}

// answerLines are answers in JSON, each valid until the next one.
type answerLines = iter.Seq2[json.RawMessage, error]

// answered returns values of this process as answers.
func answered[T any](values ...T) answerLines {
	return func(yield func(json.RawMessage, error) bool) {
		for _, v := range values {
			if !yield(json.Marshal(v)) {
				return
			}
		}
	}
}

// asOne returns answers as one, an object with a list.
func asOne(all answerLines) answerLines {
	return func(yield func(json.RawMessage, error) bool) {
		whole, separator := []byte(`{"items":[`), ""
		for answer, err := range all {
			if err != nil {
				yield(nil, err)
				return
			}
			whole = append(append(whole, separator...), answer...)
			separator = ","
		}
		yield(append(whole, "]}"...), nil)
	}
}

// person prints an answer for people: rows or prose. It decodes what this version knows of the answer.
type person func(t *text.Table, answer json.RawMessage) error

// printer prints answers as they come.
type printer struct {
	format

	out    *bufio.Writer
	table  *text.Table
	person person
	n      int // answers so far
}

func newPrinter(w io.Writer, f format, person person) *printer {
	out := bufio.NewWriter(w)
	columns := text.NewColumns(out)
	if t, is := w.(terminal); is && f.encode == nil {
		out = bufio.NewWriter(t.file)
		columns = text.NewColoured(out)
	}
	table := &text.Table{Out: columns, Wide: f.wide, Bare: f.bare}
	return &printer{format: f, out: out, table: table, person: person}
}

func (p *printer) print(answer json.RawMessage) error {
	p.n++
	if p.encode == nil {
		return p.person(p.table, answer)
	}
	encoded, err := p.encode(answer)
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	before := p.between
	if p.n == 1 {
		before = p.begin
	}
	_, err = fmt.Fprintf(p.out, "%s%s%s", before, encoded, p.after)
	return err
}

func (p *printer) flush() error { return errors.Join(p.table.Out.Flush(), p.out.Flush()) }

// show prints answers and returns how many there were. It keeps one at a time, because lists may be long, and in a pod
// this process shares the memory limit of the daemon; only a table is kept as a whole, and the list of a JSONPath.
func show(w io.Writer, f format, all answerLines, person person) (n int, err error) {
	p := newPrinter(w, f, person)
	if f.whole {
		all = asOne(all)
	}
	for answer, err := range all {
		if err != nil {
			return p.n, err
		}
		if err := p.print(answer); err != nil {
			return p.n, err
		}
	}
	after := f.end
	if p.n == 0 {
		after = f.none
	}
	_, _ = p.out.WriteString(after) // flush reports errors
	return p.n, p.flush()
}

// rows prints an item of a list.
func rows[T interface{ Rows() []text.Row }](t *text.Table, answer json.RawMessage) error {
	var v T
	err := admin.Decode(answer, &v)
	if err == nil {
		t.Add(v.Rows()...)
	}
	return err
}

// prose prints an answer that is no row.
func prose[T interface{ Print(out *text.Columns) }](t *text.Table, answer json.RawMessage) error {
	var v T
	err := admin.Decode(answer, &v)
	if err == nil {
		v.Print(t.Out)
	}
	return err
}

// terminal is standard output that shows colours. Text that is written to it is made safe.
type terminal struct {
	io.Writer

	file *os.File
}

// safe returns a writer for answers of the daemon, which may have text from objects of any author: a terminal if w is
// one, unless the user wants no colours (https://no-color.org).
func safe(w io.Writer) io.Writer {
	if f := screen(w); f != nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb" {
		return terminal{text.Safe(w), f}
	}
	return text.Safe(w)
}

// screen returns the terminal to which a writer writes; nil: it is none.
func screen(w io.Writer) *os.File {
	if f, is := w.(*os.File); is && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// size returns the columns and rows of a terminal.
func size(f *os.File) (width, height int) {
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// redraw replaces what is on a terminal by lines, of which it shows what it has room for.
func redraw(f *os.File, lines string) error {
	const clear = "\x1b[H\x1b[J"
	width, height := size(f)
	_, err := io.WriteString(f, clear+fit(lines, width, height-1)) // the last row is the cursor's
	return err
}

// fit shortens lines to a width, and text to a number of lines.
func fit(lines string, width, height int) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		if height--; height < 0 {
			break
		}
		if runes := []rune(strings.TrimSuffix(line, "\n")); len(runes) > width {
			line = string(runes[:width]) + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}
