package exempt

import (
	"os"
	"path"
	"path/filepath"
	"strings"
)

// search collects cgroups and the folders that it has read to find them.
type search struct {
	root    string
	id      func(dir string) (uint64, error)
	ids     map[uint64]bool
	folders map[string]bool
}

func newSearch(root string, id func(dir string) (uint64, error)) *search {
	return &search{root: root, id: id, ids: map[uint64]bool{}, folders: map[string]bool{root: true}}
}

// byPattern finds the cgroups whose path matches a pattern, element by element.
func (s *search) byPattern(pattern string) { s.match(s.root, strings.Split(pattern, "/")) }

func (s *search) match(dir string, pattern []string) {
	if len(pattern) == 0 {
		s.add(dir)
		return
	}
	for _, name := range s.children(dir) {
		if matches, _ := path.Match(pattern[0], name); matches { // patterns are well-formed
			s.match(filepath.Join(dir, name), pattern[1:])
		}
	}
}

// children lists the subfolders of a folder; none if the folder is gone.
func (s *search) children(dir string) []string {
	s.folders[dir] = true
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// add adds the cgroup of a folder, unless it is gone.
func (s *search) add(dir string) {
	if id, err := s.id(dir); err == nil {
		s.ids[id] = true
	}
}
