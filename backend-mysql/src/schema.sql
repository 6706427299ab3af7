CREATE TABLE IF NOT EXISTS leasehold_locks (
    prefix VARBINARY(256) NOT NULL,
    name VARBINARY(256) NOT NULL,
    version BIGINT NOT NULL,
    state MEDIUMBLOB NOT NULL,
    keep_until BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (prefix, name),
    KEY (keep_until)
) ENGINE = InnoDB;
