package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	none                string // in place of it, if there is no answer
	wide                bool   // of a table

	encode func(json.RawMessage) ([]byte, error) // nil: a form for people
}

// objectFormats are the formats of a command whose answer is one object, listFormats of one whose answer is a list.
// The first is the default.
func objectFormats() []format {
	return []format{{name: "text"}, {name: "json", end: "\n", encode: asJSON("")}, {name: "yaml", encode: asYAML("%s")}}
}

func listFormats() []format {
	return []format{
		{name: "table"},
		{name: "wide", wide: true},
		{
			name: "json", encode: asJSON("    "),
			begin: "{\n  \"items\": [\n    ", between: ",\n    ", end: "\n  ]\n}\n", none: "{\n  \"items\": []\n}\n",
		},
		{name: "yaml", begin: "items:\n", none: "items: []\n", encode: asYAML("[%s]")},
	}
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
}

func newOutput(formats []format) *output { return &output{formats[0], formats} }

// register adds the flag to a command.
func (o *output) register(cmd *cobra.Command, fs *pflag.FlagSet) {
	fs.VarP(o, "output", "o", "how to print: "+strings.Join(o.names(), ", "))
	complete(cmd, "output", o.names())
}

func (o *output) names() (names []string) {
	for _, f := range o.formats {
		names = append(names, f.name)
	}
	return names
}

func (o *output) String() string { return o.name }

func (o *output) Type() string { return "string" }

func (o *output) Set(s string) error {
	i := slices.Index(o.names(), s)
	if i < 0 {
		return fmt.Errorf("want %s", strings.Join(o.names(), ", "))
	}
	o.format = o.formats[i]
	return nil
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

// show prints answers and returns how many there were. It keeps one at a time, because lists may be long, and in a pod
// this process shares the memory limit of the daemon; only a table is kept as a whole. For people it decodes what this
// version knows of an answer, and person prints that: rows or prose.
func show[T any](w io.Writer, f format, all answerLines, person func(*text.Table, T)) (n int, err error) {
	out := bufio.NewWriter(w)
	table := &text.Table{Out: text.NewColumns(out), Wide: f.wide}
	before := f.begin
	for answer, err := range all {
		if err != nil {
			return n, err
		}
		n++
		if f.encode == nil {
			var v T
			if err := admin.Decode(answer, &v); err != nil {
				return n, err
			}
			person(table, v)
			continue
		}
		encoded, err := f.encode(answer)
		if err != nil {
			return n, fmt.Errorf("print the answer: %w", err)
		}
		if _, err := fmt.Fprintf(out, "%s%s", before, encoded); err != nil {
			return n, err
		}
		before = f.between
	}
	after := f.end
	if n == 0 {
		after = f.none
	}
	_, _ = out.WriteString(after) // Flush reports errors
	return n, errors.Join(table.Out.Flush(), out.Flush())
}

// rows prints an item of a list.
func rows[T interface{ Rows() []text.Row }](t *text.Table, v T) { t.Add(v.Rows()...) }

// prose prints an answer that is no row.
func prose[T interface{ Print(out *text.Columns) }](t *text.Table, v T) { v.Print(t.Out) }
