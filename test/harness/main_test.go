//go:build linux

package harness

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// A reader with the file open keeps the old text, and no temporary file remains.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Replace(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := Replace(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	kept := make([]byte, 3)
	if _, err := f.Read(kept); err != nil || string(kept) != "old" {
		t.Errorf("the open file has %q: %v", kept, err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new" {
		t.Errorf("the new file has %q: %v", text, err)
	}
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
		t.Errorf("files in the folder: %v, %v", all, err)
	}
}
