package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// output is how an answer is printed: one of some words.
type output struct {
	is    string
	words []string // the first is the default
}

func newOutput(words ...string) *output { return &output{words[0], words} }

// register adds the flag to a command.
func (o *output) register(cmd *cobra.Command, fs *pflag.FlagSet) {
	fs.VarP(o, "output", "o", "how to print: "+strings.Join(o.words, ", "))
	complete(cmd, "output", o.words)
}

// String implements pflag.Value.
func (o *output) String() string { return o.is }

// Type implements pflag.Value.
func (o *output) Type() string { return "string" }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	if !slices.Contains(o.words, s) {
		return fmt.Errorf("want %s", strings.Join(o.words, ", "))
	}
	o.is = s
	return nil
}

// print prints an answer as JSON or YAML, as the daemon gave it, or else as
// text does.
func (o *output) print(w io.Writer, said json.RawMessage, text func() error) error {
	var out []byte
	switch o.is {
	case "json":
		var b bytes.Buffer
		if err := json.Indent(&b, bytes.TrimSpace(said), "", "  "); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		out = append(b.Bytes(), '\n')
	case "yaml":
		var err error
		if out, err = yaml.JSONToYAML(said); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	default:
		return text()
	}
	_, err := w.Write(out)
	return err
}

// decode reads an answer as what this version knows of it.
func decode[T any](said json.RawMessage) (T, error) {
	var v T
	if err := json.Unmarshal(said, &v); err != nil {
		return v, fmt.Errorf("read the answer of the daemon (is it of another version?): %w", err)
	}
	return v, nil
}
