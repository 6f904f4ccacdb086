package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// unpack returns the files of an archive by name.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	in, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o600 || h.Typeflag != tar.TypeReg {
			t.Errorf("%s has mode %o and type %c", h.Name, h.Mode, h.Typeflag)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
}

// A source that fails, or that ignores the deadline, costs its own file only, and the time is bounded.
func TestCollectIsBoundedInTimeAndSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		began := time.Now()
		files := Collect(t.Context(), []Source{
			{"good", false, func(context.Context) ([]byte, error) { return []byte("text"), nil }},
			{"bad", false, func(context.Context) ([]byte, error) { return []byte("half"), errors.New("no such thing") }},
			{"slow", false, func(ctx context.Context) ([]byte, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}},
			{"stuck", false, func(context.Context) ([]byte, error) {
				<-release
				return []byte("too late"), nil
			}},
			{"large", false, func(context.Context) ([]byte, error) { return make([]byte, MaxFile+1), nil }},
		})
		if took := time.Since(began); took != Deadline {
			t.Errorf("it took %v, want %v", took, Deadline)
		}
		close(release)
		var got []string
		for _, f := range files {
			line := f.Name + " " + f.Took.String()
			if f.Err != nil {
				line += " " + f.Err.Error()
			}
			if f.Cut {
				line += " cut"
			}
			if len(f.Text) < 10 {
				line += " " + string(f.Text)
			}
			got = append(got, line)
		}
		want := []string{
			"good 0s text", "bad 0s no such thing ", "slow 3s context deadline exceeded ",
			"stuck 3s not read within 3s: context deadline exceeded ", "large 0s cut",
		}
		got[2] = strings.Replace(got[2], "not read within 3s: ", "", 1) // whichever comes first
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if len(files[4].Text) != MaxFile {
			t.Errorf("%d bytes", len(files[4].Text))
		}
	})
}

// Every file is cleaned, about.txt and reasons too, and a missing file has its reason.
func TestArchive(t *testing.T) {
	a := Archive{
		Folder: "report", About: "Report\n", At: time.Unix(1e9, 0),
		Files: []File{
			{Name: "a.txt", Text: []byte("a secret"), Took: time.Second},
			{Name: "b.json", Err: errors.New("no secret here")},
			{Name: "c", Text: []byte("c"), Cut: true},
		},
		Clean: func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("secret"), []byte("-")) },
	}
	var b bytes.Buffer
	if err := a.Write(&b); err != nil {
		t.Fatal(err)
	}
	const about = `Report

FILE    BYTES  TOOK  NOTE
a.txt   8      1s    -
b.json  0      0s    missing: no - here
c       1      0s    only the first 4194304 bytes
`
	want := map[string]string{
		"report/about.txt": about, "report/a.txt": "a -", "report/b.json.missing": "no - here\n", "report/c": "c",
	}
	if diff := cmp.Diff(want, unpack(t, b.Bytes())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// full is a writer without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAFailedWriteIsAnError(t *testing.T) {
	err := Archive{
		Clean: func(b []byte) []byte { return b }, Files: []File{{Name: "a", Text: make([]byte, 1<<20)}},
	}.Write(full{})
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v", err)
	}
}
