// Package bugreport collects facts for a fault report in one archive: within a time, each file within a size, without
// secrets, and on request without the addresses and names of a cluster.
package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

const (
	// Deadline is how long all sources together may take. The rest of 5 seconds is for the archive.
	Deadline = 3 * time.Second

	// MaxFile is the size of the largest file, in bytes.
	MaxFile = 4 << 20
)

// Services is the name of the file that has the names of all Services.
const Services = "services.json"

// Source is a file to be.
type Source struct {
	Name    string
	Cluster bool                                  // it consists of JSON objects that name objects of the cluster
	Read    func(context.Context) ([]byte, error) // reads MaxFile + 1 bytes at most
}

// File is a file of the archive.
type File struct {
	Name    string
	Cluster bool // as of the Source
	Text    []byte
	Took    time.Duration
	Err     error // why there is no Text
	Cut     bool  // there was more
}

// Collect reads all sources at the same time. It returns when the last one is read, or after Deadline: a source that
// does not return in time, whatever it waits for, has an error.
func Collect(ctx context.Context, sources []Source) []File {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	files := make([]File, len(sources))
	var wait sync.WaitGroup
	for i, s := range sources {
		wait.Go(func() { files[i] = collect(ctx, s) })
	}
	wait.Wait()
	return files
}

func collect(ctx context.Context, s Source) File {
	began, read := time.Now(), make(chan File, 1) // who reads may end later
	go func() {
		f := File{Name: s.Name, Cluster: s.Cluster}
		f.Text, f.Err = s.Read(ctx)
		read <- f
	}()
	var f File
	select {
	case f = <-read:
	case <-ctx.Done():
		f = File{Name: s.Name, Cluster: s.Cluster, Err: fmt.Errorf("not read within %v: %w", Deadline, ctx.Err())}
	}
	f.Took = time.Since(began)
	if f.Err != nil {
		f.Text = nil
	}
	if f.Cut = len(f.Text) > MaxFile; f.Cut {
		f.Text = f.Text[:MaxFile]
	}
	return f
}

// Archive is what Write writes.
type Archive struct {
	Folder string // that all files are in
	About  string // lines at the beginning of about.txt
	At     time.Time
	Files  []File
	Clean  func([]byte) []byte // removes what must not be in a file
}

// Write writes the archive as .tar.gz. A file that could not be read has the reason in its place.
func (a Archive) Write(w io.Writer) error {
	compressed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // a valid level
	out := tar.NewWriter(compressed)
	add := func(name string, content []byte) error {
		content = a.Clean(content)
		h := &tar.Header{
			Name: a.Folder + "/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: a.At, Typeflag: tar.TypeReg,
		}
		err := out.WriteHeader(h)
		if err == nil {
			_, err = out.Write(content)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		return nil
	}
	if err := add("about.txt", a.about()); err != nil {
		return err
	}
	for _, f := range a.Files {
		name, content := f.Name, f.Text
		if f.Err != nil {
			name, content = f.Name+".missing", []byte(f.Err.Error()+"\n")
		}
		if err := add(name, content); err != nil {
			return err
		}
	}
	if err := errors.Join(out.Close(), compressed.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

func (a Archive) about() []byte {
	var b bytes.Buffer
	b.WriteString(a.About + "\n")
	columns := text.NewColumns(&b)
	columns.Row("FILE", "BYTES", "TOOK", "NOTE")
	for _, f := range a.Files {
		note := ""
		switch {
		case f.Err != nil:
			note = "missing: " + f.Err.Error()
		case f.Cut:
			note = fmt.Sprintf("only the first %d bytes", MaxFile)
		}
		columns.Row(f.Name, fmt.Sprint(len(f.Text)), f.Took.Round(time.Millisecond).String(), note)
	}
	_ = columns.Flush() // a Buffer takes everything
	return b.Bytes()
}
