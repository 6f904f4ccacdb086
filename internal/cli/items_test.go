package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

// Answers are printed as the object or the list that they are.
func TestFormats(t *testing.T) {
	for _, said := range []string{
		`[]`,
		`[{"namespace":"default","name":"a"}]`,
		`[{"name":"a","ports":[{"port":1},{"port":2}],"reason":"two\nlines"},{"name":"b: c"},{}]`,
	} {
		var items []json.RawMessage
		if err := json.Unmarshal([]byte(said), &items); err != nil {
			t.Fatal(err)
		}
		compare(t, listFormats(), `{"items":`+said+`}`, items...)
		for _, item := range items {
			compare(t, objectFormats(), string(item), item)
		}
	}
}

// compare compares what is printed as JSON and YAML with the whole value.
func compare(t *testing.T, formats []format, whole string, answers ...json.RawMessage) {
	t.Helper()
	var asJSON bytes.Buffer
	if err := json.Indent(&asJSON, []byte(whole), "", "  "); err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.JSONToYAML([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"json": asJSON.String() + "\n", "yaml": string(asYAML)} {
		o := newOutput(formats)
		if err := o.Set(name); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		n, err := show(&got, o.format, answered(answers...), rows[inspect.Service])
		if err != nil || n != len(answers) || got.String() != want {
			t.Errorf("%d answers, %v:\n%swant:\n%s", n, err, &got, want)
		}
	}
}

// An answer that this version cannot read is an error, and so is one of the daemon.
func TestBadAnswers(t *testing.T) {
	for want, answers := range map[string]answerLines{
		"read the answer of the daemon (does it have another version?): json: cannot unmarshal array into Go struct field " +
			"Service.name of type string": answered(json.RawMessage(`{"name":["a"]}`)),
		"no daemon": func(yield func(json.RawMessage, error) bool) { yield(nil, errors.New("no daemon")) },
	} {
		if _, err := show(io.Discard, format{}, answers, rows[inspect.Service]); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestCandidates(t *testing.T) {
	got := candidates([]string{"default/web", "kube-system/kube-dns.x"}, "", "")
	if want := []string{"default/web", "kube-system/kube-dns.x"}; !slices.Equal(got, want) {
		t.Errorf("candidates %q, want %q", got, want)
	}
}

func TestExitStatus(t *testing.T) {
	wrong := errors.New("wrong")
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{wrong, 1},
		{trouble(wrong), 2},
		{trouble(trouble(wrong)), 2},
		{trouble(nil), 0},
		{trouble(&exitError{status: 1}), 1},
	} {
		if got := exitStatus(tt.err); got != tt.want {
			t.Errorf("%v ends with %d, want %d", tt.err, got, tt.want)
		}
	}
	if !errors.Is(trouble(wrong), wrong) || trouble(wrong).Error() != "wrong" {
		t.Error("trouble hides what is wrong")
	}
}
