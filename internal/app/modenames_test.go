package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A mode is named in its own folder, the configuration, the take-over and kinds_*.go only (docs/architecture.md).
func TestModesAreNamedInFewPlaces(t *testing.T) {
	names := append(Modes(Kinds()), "ipvs")
	allowed := []string{
		"internal/plane/", "internal/config/", "internal/takeover/", "internal/app/kinds",
		"internal/linux/iptables/", // runs the program of this name
	}
	const root = "../.."
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			name, relErr := filepath.Rel(root, path)
			name = filepath.ToSlash(name)
			named := slices.ContainsFunc(allowed, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
			if err != nil || relErr != nil || named || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil && slices.Contains(names, text) {
						t.Errorf("%s:%d names the mode %s", name, files.Position(lit.Pos()).Line, text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
