package table

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Grant lets a role read tables: the named ones, or all with the future ones where names is empty. It
// refuses superusers and members of the owner: they have more rights.
func Grant(ctx context.Context, db Database, role string, names []string) error {
	return changeGrants(ctx, db, role, names, true)
}

// Revoke ends what Grant lets a role do.
func Revoke(ctx context.Context, db Database, role string, names []string) error {
	return changeGrants(ctx, db, role, names, false)
}

func changeGrants(ctx context.Context, db Database, role string, names []string, give bool) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		owner, err := checkRole(ctx, tx, role, give)
		if err != nil {
			return err
		}
		to := pgx.Identifier{role}.Sanitize()
		change := func(right, what string) error {
			sql := "REVOKE " + right + " ON " + what + " FROM " + to
			if give {
				sql = "GRANT " + right + " ON " + what + " TO " + to
			}
			_, err := tx.Exec(ctx, sql)
			return err
		}
		if len(names) > 0 {
			return changeEach(ctx, tx, names, give, change)
		}
		for _, what := range []string{"SCHEMA view", "ALL TABLES IN SCHEMA view"} {
			right := "SELECT"
			if what == "SCHEMA view" {
				right = "USAGE"
			}
			if err := change(right, what); err != nil {
				return err
			}
		}
		// Of tables to come.
		sql := fmt.Sprintf("ALTER DEFAULT PRIVILEGES FOR ROLE %s IN SCHEMA view ", pgx.Identifier{owner}.Sanitize())
		if give {
			sql += "GRANT SELECT ON TABLES TO " + to
		} else {
			sql += "REVOKE SELECT ON TABLES FROM " + to
		}
		_, err = tx.Exec(ctx, sql)
		return err
	})
}

// changeEach changes the rights on tables by name.
func changeEach(ctx context.Context, tx pgx.Tx, names []string, give bool, change func(right, what string) error) error {
	if give {
		if err := change("USAGE", "SCHEMA view"); err != nil {
			return err
		}
		if err := change("SELECT", "view._table"); err != nil {
			return err
		}
	}
	for _, name := range names {
		list, err := readGenerations(ctx, tx, "g.name = $1 AND g.state <> 'failed'", name)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return noTable(name)
		}
		for _, g := range list { // a table that is being built, too
			if err := change("SELECT", g.relation()); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRole fails for a role that does not exist or should not be a reader. It returns the owner of the schema.
func checkRole(ctx context.Context, tx pgx.Tx, role string, give bool) (owner string, err error) {
	var super, member bool
	err = tx.QueryRow(ctx, `SELECT r.rolsuper, pg_has_role(r.oid, n.nspowner, 'MEMBER'), pg_get_userbyid(n.nspowner)
		FROM pg_roles r CROSS JOIN pg_namespace n WHERE r.rolname = $1 AND n.nspname = 'view'`, role).Scan(&super, &member, &owner)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", fmt.Errorf("there is no role %q", role)
	case err != nil || !give:
		return owner, err
	case super:
		return "", fmt.Errorf("the role %q is a superuser: readers of tables need a role without rights", role)
	case member:
		return "", fmt.Errorf("the role %q is a member of %q, which owns the tables: readers of tables need a role without rights", role, owner)
	}
	return owner, nil
}

// copyGrants gives a table exactly the rights that another one has.
func copyGrants(ctx context.Context, tx pgx.Tx, from, to *generation) error {
	const rights = `SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END, a.privilege_type, a.is_grantable
		FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a WHERE c.oid = to_regclass($1) AND a.grantee <> c.relowner`
	type right struct {
		grantee, privilege string
		grantable          bool
	}
	list := func(g *generation) ([]right, error) {
		rows, err := tx.Query(ctx, rights, g.relation())
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (right, error) {
			var r right
			err := row.Scan(&r.grantee, &r.privilege, &r.grantable)
			return r, err
		})
	}
	had, err := list(to)
	if err != nil {
		return err
	}
	for _, r := range had {
		if _, err := tx.Exec(ctx, "REVOKE "+r.privilege+" ON "+to.relation()+" FROM "+r.grantee); err != nil {
			return err
		}
	}
	give, err := list(from)
	if err != nil {
		return err
	}
	for _, r := range give {
		sql := "GRANT " + r.privilege + " ON " + to.relation() + " TO " + r.grantee
		if r.grantable {
			sql += " WITH GRANT OPTION"
		}
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}
